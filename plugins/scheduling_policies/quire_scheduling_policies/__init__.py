"""Scheduling policies that ship with quire."""
