"""What a plugin implements: one file a kind. Torch is named here only in annotations."""
