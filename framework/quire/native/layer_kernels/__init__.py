"""C++ kernels of layers, logit masks and LoRA adapters, with their Python wrappers."""
