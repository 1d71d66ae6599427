"""Models of transformers, with layers of quire, for architectures that no plugin registers."""
