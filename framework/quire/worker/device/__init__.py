"""Host-device copies, CPU threads, device failures and the tensor-parallel group."""
