"""Attention in plain torch: the backend `torch_sdpa`."""
