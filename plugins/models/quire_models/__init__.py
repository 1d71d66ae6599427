"""Models that ship with quire."""
