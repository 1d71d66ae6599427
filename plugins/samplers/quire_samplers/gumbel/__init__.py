"""Samplers by the largest logit with Gumbel noise, for each kind of kernels."""
