"""Structured-output backends that ship with quire."""
