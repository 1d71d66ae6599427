"""Selection of every part of an engine, from settings and plugin registries."""
