"""Conversion of engine outputs to completions: text, log probabilities and deltas."""
