"""Top-n-sigma filter (Tang et al., 2024), by the spread of the logits at any temperature."""

import torch

from quire.interfaces.sampling import LogitsProcessor


class TopNSigma(LogitsProcessor):
    """Keep logits within `top_n_sigma` standard deviations of the largest."""

    def is_neutral(self, fields):
        """Return whether all tokens are kept."""
        return fields["top_n_sigma"] == 0

    def apply(self, logits, rows):  # [N, V]
        """Set the logits of all other tokens to -inf."""
        n = rows.field("top_n_sigma")  # [N, 1]
        is_possible = logits > -torch.inf  # a grammar may have masked tokens
        count = is_possible.sum(-1, keepdim=True)
        known = logits.masked_fill(~is_possible, 0)
        mean = known.sum(-1, keepdim=True) / count
        deviations = (known - mean).masked_fill(~is_possible, 0)
        sigma = (deviations.square().sum(-1, keepdim=True) / count).sqrt()
        lowest = logits.amax(-1, keepdim=True) - n * sigma
        return torch.where((logits < lowest) & (n > 0), -torch.inf, logits)
