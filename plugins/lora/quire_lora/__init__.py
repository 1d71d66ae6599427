"""LoRA sources that ship with quire."""
