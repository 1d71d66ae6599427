"""Order of a head's elements that gives every rotary embedding the same form. Torch-free.

Attention scores stay the same if the elements of q and of k are permuted alike. So a layer reorders
the rows of its projections while they are loaded, and kernels know one form: element i is rotated
with element i + D / 2, by the angles of pair i. Elements that are not rotated have the angle 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.layers.attention.rope_parameters import RopeParameters


def head_order(head_dim: int, rope: RopeParameters | None) -> Sequence[int] | None:
    """Return the checkpoint's index of each element of a head; None if the order stays.

    Args:
        head_dim: Elements per head, D.
        rope: Rotary embedding; None: there is none.
    """
    if rope is None:
        return None
    rotary_dim = head_dim if rope.rotary_dim is None else rope.rotary_dim
    if rope.is_interleaved:
        first, second = range(0, rotary_dim, 2), range(1, rotary_dim, 2)
    else:
        first, second = range(rotary_dim // 2), range(rotary_dim // 2, rotary_dim)
    middle = (head_dim + rotary_dim) // 2
    order = [*first, *range(rotary_dim, middle), *second, *range(middle, head_dim)]
    return None if order == list(range(head_dim)) else order
