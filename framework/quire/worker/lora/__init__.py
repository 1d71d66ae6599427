"""LoRA adapters of a worker: loaded, checked against the base model, and evicted."""
