"""Sums of the partial outputs of a tensor-parallel group."""

from __future__ import annotations

from torch import Tensor

from quire.layers.context import LayerContext


def summed(partial: Tensor, context: LayerContext) -> Tensor:
    """Return the sum of the devices' partial outputs; in batch-invariant mode in rank order.

    `partial` may be written in place.
    """
    tp = context.tp
    if tp.size == 1:
        return partial
    if not context.batch_invariant:
        return tp.all_reduce(partial)
    total, *others = tp.all_gather(partial, -1).chunk(tp.size, -1)
    for other in others:
        total = total + other
    return total
