"""Validation of requests before they are queued in the engine."""
