"""Executors that ship with quire."""
