"""Formats of checkpoints whose tensors are converted while they are loaded."""
