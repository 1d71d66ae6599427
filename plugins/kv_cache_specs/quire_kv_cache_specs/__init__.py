"""KV-cache specs that ship with quire."""
