"""What the machine has: devices, memory, cores and instruction sets, found out without torch."""
