"""The C++ kernels of layers, masks and adapters, as torch operators call them."""
