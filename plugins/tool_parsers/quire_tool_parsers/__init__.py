"""Tool-call parsers that ship with quire."""
