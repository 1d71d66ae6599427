"""Quantized checkpoints: one module a format, which decodes its tensors to codes and scales."""
