"""Options of quantized checkpoints: checks of each format's `quantization_config`; no torch."""
