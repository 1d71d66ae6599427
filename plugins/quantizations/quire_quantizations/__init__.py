"""Quantization methods that ship with quire."""
