"""Copies to and from a device, its threads and faults, and the group of its rank."""
