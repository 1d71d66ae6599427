"""The Triton kernels of layers, sampling and steps; each has a plain torch reference in its tests.

Only code that runs kernels imports these modules: they load Triton. A launch allocates nothing that
lasts, asks the device nothing, and may be captured as a CUDA graph.
"""
