"""Attention by Triton kernels: the backend `triton`."""
