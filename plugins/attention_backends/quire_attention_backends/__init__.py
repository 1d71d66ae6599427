"""Attention backends that ship with quire."""
