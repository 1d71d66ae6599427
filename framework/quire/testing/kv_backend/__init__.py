"""Shared part of the conformance kits of backends that cache keys and values in KV blocks."""
