"""Attention in compiled C++: the backend `cpu`."""
