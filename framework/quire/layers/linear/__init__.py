"""Linear layers: merged, sharded, adapted, quantized or packed for the CPU."""
