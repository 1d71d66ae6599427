"""Loading of weights and adapters into a model, and binding of its layers to the KV cache."""
