"""Child processes: start and end, watchdogs, message channels, hubs, and exceptions as text."""
