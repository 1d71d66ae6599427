"""Batch state and step inputs: slot tables, block tables, positions and input ids as tensors."""
