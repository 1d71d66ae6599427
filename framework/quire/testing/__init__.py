"""Conformance kits: tests that every plugin of a kind must pass, built-in or third-party."""
