"""Text to tokens and tokens to text: everything between a caller and the engine."""
