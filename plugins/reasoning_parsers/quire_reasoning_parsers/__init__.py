"""Reasoning parsers that ship with quire."""
