"""Multi-head latent attention (MLA): the backends `torch_mla` and `triton_mla`."""
