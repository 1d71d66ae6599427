"""Linear layers: merged, sharded, with LoRA adapters, quantized or packed for the CPU."""
