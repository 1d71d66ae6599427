"""Detection of the machine: devices, memory, cores and instruction sets, without torch."""
