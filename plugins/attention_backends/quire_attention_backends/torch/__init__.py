"""Attention in plain PyTorch: the backend `torch_sdpa`."""
