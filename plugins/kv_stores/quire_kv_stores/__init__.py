"""KV stores that ship with quire."""
