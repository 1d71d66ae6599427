"""A page is `[2, K, S, D]`, keys before values; an int8 page keeps the scales of its rows behind.

page of float32, bfloat16, float16 or float8     page of int8
| K of head 0: S rows of D | ... | V ... |       | the same, one byte a number | [2, K, S] float32 |

All backends of this package share it, so blocks written by one can be read by another. What is kept
of a number x is, with float8, x divided by the layer's `k_scale` or `v_scale`; with int8, x divided
by its row's scale, the largest |x| / 127, to the nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from quire.errors import RefusedError
from quire.interfaces.attention import AttentionShape

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

Kind = Literal["plain", "float8", "int8"]

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int8": torch.int8,
}
KINDS: dict[str, Kind] = {"float8_e4m3fn": "float8", "int8": "int8"}  # others are plain
NUM_SIDES = 2  # K and V
SCALE_BYTES = 4  # of a row of int8


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of one layer, as kernels address them.

    Attributes:
        data: `[B, 2, K, S, D]`; uint8 where the kind is float8, whose codes kernels decode. All but
            the first stride are those of a contiguous tensor.
        scales: `[B, 2, K, S]` float32, where the kind is int8.
    """

    data: Tensor
    scales: Tensor | None
    kind: Kind


def kind_of(kv_dtype: str) -> Kind:
    """Return how numbers of a cache are kept."""
    return KINDS.get(kv_dtype, "plain")


def view_pages(raw: Tensor, spec: KVCacheSpec, num_blocks: int, backend_name: str) -> Tensor:
    """Return the raw bytes as `[B, 2, K, S, D]`; int8 pages as uint8 `[B, page bytes]`.

    Raises:
        RefusedError: A page is not K and V of whole heads, or of another element type; or the
            padding between pages is not whole rows.
    """
    dtype = DTYPES.get(spec.kv_dtype)
    if dtype is None:
        raise RefusedError(f"{backend_name} cannot read KV of type {spec.kv_dtype}")
    is_int8 = dtype == torch.int8
    head_dim = spec.layer.head_dim
    row_bytes = head_dim * dtype.itemsize + (SCALE_BYTES if is_int8 else 0)
    pair_bytes = NUM_SIDES * spec.block_size * row_bytes
    num_kv_heads, rest = divmod(spec.page_bytes, pair_bytes)
    pages = raw.view(num_blocks, spec.page_bytes) if raw.dim() == 1 else raw
    unit = SCALE_BYTES if is_int8 else row_bytes
    has_whole_rows = num_blocks == 1 or pages.stride(0) % unit == 0
    has_place = not is_int8 or spec.page_bytes // row_bytes * head_dim % SCALE_BYTES == 0
    if rest or not num_kv_heads or not has_whole_rows or not has_place:
        raise RefusedError(
            f"{backend_name} cannot use the KV cache of {spec.layer.name}: its pages have "
            f"{spec.page_bytes} bytes every {pages.stride(0)}, K and V of one head have "
            f"{pair_bytes}, one of its rows {row_bytes}"
        )
    if is_int8:
        return pages
    sizes = (num_blocks, NUM_SIDES, num_kv_heads, spec.block_size, head_dim)
    return pages.view(dtype).view(sizes)


def split_pages(kv_cache: Tensor, shape: AttentionShape) -> Pages:
    """Return the numbers and scales in what `view_pages` made; views, nothing is copied."""
    kind = kind_of(shape.kv_dtype)
    if kind == "plain":
        return Pages(kv_cache, None, kind)
    if kind == "float8":
        return Pages(kv_cache.view(torch.uint8), None, kind)
    num_heads, size, head_dim = shape.num_kv_heads, shape.block_size, shape.head_dim
    num_bytes = NUM_SIDES * num_heads * size * head_dim
    sizes = (len(kv_cache), NUM_SIDES, num_heads, size)
    data = kv_cache[:, :num_bytes].view(torch.int8).view(*sizes, head_dim)
    scales = kv_cache[:, num_bytes:].view(torch.float32).view(sizes)
    return Pages(data, scales, kind)
