"""Beam search: selections over requests that share their blocks."""
