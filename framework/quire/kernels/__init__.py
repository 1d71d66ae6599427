"""Triton kernels for layers, sampling and step inputs; their tests compare them with plain torch.

Only code that runs kernels imports these modules, because they load Triton. A launch keeps no
memory, does not synchronise with the device, and may be captured in a CUDA graph.
"""
