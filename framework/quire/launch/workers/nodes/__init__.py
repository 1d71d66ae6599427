"""Ranks on several machines: an agent on each starts and watches its ranks for the engine."""
