"""From engine outputs to what a caller reads: texts, log probabilities and deltas."""
