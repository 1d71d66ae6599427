"""Child processes: start and end, watchdogs, message channels, and exceptions as text."""
