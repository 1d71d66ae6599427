"""Attention in Triton kernels: the backend `triton`."""
