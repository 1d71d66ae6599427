"""From logits to sampled tokens: masks, the sampler pipeline and log probabilities."""
