"""Entropy of rows of log probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def entropy_of(logprobs: Tensor) -> Tensor:  # [N, V] -> [N, 1]
    """Return the entropy of each row, in nats; masked tokens, at -inf, add nothing."""
    products = logprobs.exp() * logprobs
    return -products.nan_to_num(0.0).sum(-1, keepdim=True)  # 0 * -inf
