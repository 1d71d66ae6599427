"""Attention in compiled C++ kernels: the backend `cpu`."""
