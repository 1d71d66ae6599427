"""Latent attention: the backends `torch_mla` and `triton_mla`."""
