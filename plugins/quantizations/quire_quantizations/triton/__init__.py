"""Weights of quantized checkpoints, kept as codes and multiplied by Triton kernels."""
