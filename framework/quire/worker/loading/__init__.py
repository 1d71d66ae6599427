"""Weights, adapters and KV memory: from files to the layers of a model."""
