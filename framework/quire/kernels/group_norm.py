"""Norms of each token's groups of elements in place: of heads, or of whole projections.

One program computes one group of one token and reads nothing else, so its bits do not depend on the
batch.
"""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

ELEMENTS_PER_WARP = 512
MAX_WARPS = 32


@dataclass(frozen=True, slots=True)
class GroupNormLaunch:
    """Norms of heads `[T, H, D]`, with the constants of one layer.

    Attributes:
        weight: `[H, D]`; None: groups are only normalised.
        eps: Term added to the mean square or variance.
        num_first: Number of heads in the first of two groups; None: each head is a group.
        is_centred: Whether the norm is a layer norm; otherwise it is an RMS norm.
        rounds_before_weight: Whether groups are rounded to the dtype before the product with the
            weight as well.
    """

    weight: Tensor | None
    eps: float
    num_first: int | None = None
    is_centred: bool = False
    rounds_before_weight: bool = False

    def in_place(self, heads: Tensor) -> None:
        """Normalise heads where they are; tokens may lie apart, their heads may not.

        Raises:
            ValueError: The heads of a token lie apart.
        """
        num_tokens, num_heads, head_dim = heads.shape
        if heads.stride()[1:] != (head_dim, 1):
            raise ValueError(
                f"a token's heads must lie one after the other, got strides {heads.stride()}"
            )
        first = head_dim if self.num_first is None else self.num_first * head_dim
        num_groups = num_heads if self.num_first is None else 2
        largest = max(first, num_heads * head_dim - first) if self.num_first else head_dim
        block = 1 << (largest - 1).bit_length()
        _group_norm_kernel[(num_tokens * num_groups,)](
            heads,
            heads if self.weight is None else self.weight,
            heads.stride(0),
            first,
            num_heads * head_dim,
            self.eps,
            NUM_GROUPS=num_groups,
            ARE_TWO=self.num_first is not None,
            HAS_WEIGHT=self.weight is not None,
            IS_CENTRED=self.is_centred,
            ROUNDS_BEFORE_WEIGHT=self.rounds_before_weight,
            BLOCK=block,
            num_warps=min(MAX_WARPS, max(1, block // ELEMENTS_PER_WARP)),
            enable_fp_fusion=True,
        )


@triton.jit
def _group_norm_kernel(
    x_ptr,  # [T, width], in place
    weight_ptr,  # [width]
    stride,
    first,  # elements of the first group
    width,
    eps,
    NUM_GROUPS: tl.constexpr,
    ARE_TWO: tl.constexpr,  # otherwise all groups have as many elements as the first
    HAS_WEIGHT: tl.constexpr,
    IS_CENTRED: tl.constexpr,
    ROUNDS_BEFORE_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = (tl.program_id(0) // NUM_GROUPS).to(tl.int64)
    group = tl.program_id(0) % NUM_GROUPS
    begin, size = group * first, first
    if ARE_TWO:
        size = tl.where(group == 0, first, width - first)
    column = tl.arange(0, BLOCK)
    is_inside = column < size
    at = x_ptr + token * stride + begin + column
    x = tl.load(at, mask=is_inside, other=0.0).to(tl.float32)
    if IS_CENTRED:
        x = tl.where(is_inside, x - tl.sum(x, 0) / size, 0.0)
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    if ROUNDS_BEFORE_WEIGHT:
        normed = normed.to(x_ptr.dtype.element_ty).to(tl.float32)
    if HAS_WEIGHT:
        normed *= tl.load(weight_ptr + begin + column, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(at, normed.to(x_ptr.dtype.element_ty), mask=is_inside)
