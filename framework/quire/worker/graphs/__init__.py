"""Decode steps that are captured once and replayed: CUDA graphs, and traced calls on a CPU."""
