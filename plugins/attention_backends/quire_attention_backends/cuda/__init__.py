"""Decode steps in CUDA C++: the backend `cuda`."""
