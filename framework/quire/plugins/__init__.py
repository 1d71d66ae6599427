"""Plugins: discovery, isolated loading, and registries of the parts that they offer."""
