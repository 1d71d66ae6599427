"""Factors on embeddings."""

from __future__ import annotations

import torch


def rounded(factor: float, dtype: torch.dtype) -> float:
    """Round to the dtype of the tensor that it multiplies, as in the training."""
    return float(torch.tensor(factor, dtype=dtype))
