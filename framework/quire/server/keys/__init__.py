"""API keys and admin keys: where they come from, their limits, their usage and their caches."""
