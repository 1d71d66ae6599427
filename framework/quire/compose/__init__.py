"""Compose an engine: settings and registries in, a frozen account of every choice out."""
