"""Sampling: logit masks, the sampling pipeline, sampled tokens and log probabilities."""
