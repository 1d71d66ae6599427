"""GGUF checkpoints: the header of the files, and what it says of the model and its tokenizer."""
