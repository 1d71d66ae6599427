"""Page layout and quantization, attention bounds, and split plans, for all backends."""
