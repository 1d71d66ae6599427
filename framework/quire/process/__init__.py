"""Processes: channels between them, children, watchdogs, and exceptions as text."""
