"""Host-device copies, CPU threads, device failures, and the groups and links of ranks."""
