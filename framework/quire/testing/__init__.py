"""Conformance kits that every plugin of a kind must pass, ours and yours."""
