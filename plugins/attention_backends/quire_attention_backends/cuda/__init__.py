"""Decode attention in CUDA C++: the backend `cuda`."""
