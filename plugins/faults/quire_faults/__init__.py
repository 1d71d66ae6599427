"""Faults that are injected on purpose, for tests of what an engine does about them."""
