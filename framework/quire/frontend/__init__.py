"""Request validation, tokenization and output streams between callers and the engine."""
