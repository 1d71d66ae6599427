"""Page layout `[2, K, S, D]`, keys before values; an int8 page ends with the scales of its rows.

page of float32, bfloat16, float16 or float8     page of int8
| K of head 0: S rows of D | ... | V ... |       | the same, one byte each | [2, K, S] float32 |

All backends of this package share the layout, so blocks written by one can be read by another. An
element x is stored in float8 as x divided by the layer's `k_scale` or `v_scale`, and in int8 as x
divided by its row's scale, the largest |x| / 127. Both round to nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from quire.errors import RefusedError
from quire.interfaces.attention import AttentionBackend, AttentionShape

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
KINDS: dict[str, Kind] = {"float8_e4m3fn": "float8", "int8": "int8"}  # all others are plain
NUM_SIDES = 2  # K and V
SCALE_BYTES = 4  # per row of int8


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of one layer, as kernels address them.

    Attributes:
        data: `[B, 2, K, S, D]`; uint8 codes if the kind is float8. All strides but the first are
            those of a contiguous tensor.
        scales: `[B, 2, K, S]` float32 if the kind is int8, otherwise None.
        kind: Encoding of the elements.
    """

    data: Tensor
    scales: Tensor | None
    kind: Kind


def kind_of(kv_dtype: str) -> Kind:
    """Return the encoding of the elements of a cache."""
    return KINDS.get(kv_dtype, "plain")


class PagesBackend(AttentionBackend):
    """Base of the backends whose pages have this layout.

    Attributes:
        name: Name of the backend for error messages.
    """

    name: ClassVar[str]

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as `[B, 2, K, S, D]`; int8 pages as uint8 `[B, page bytes]`.

        Raises:
            RefusedError: The element type is not supported, a page is not K and V of whole heads,
                or the distance between pages is not a multiple of a row (of a scale for int8).
        """
        dtype = DTYPES.get(spec.kv_dtype)
        if dtype is None:
            raise RefusedError(f"{cls.name} does not support a KV cache of type {spec.kv_dtype}")
        is_int8 = dtype == torch.int8
        head_dim = spec.layer.head_dim
        row_bytes = head_dim * dtype.itemsize + (SCALE_BYTES if is_int8 else 0)
        pair_bytes = NUM_SIDES * spec.block_size * row_bytes
        num_kv_heads, rest = divmod(spec.page_bytes, pair_bytes)
        pages = raw.view(num_blocks, spec.page_bytes) if raw.dim() == 1 else raw
        unit = SCALE_BYTES if is_int8 else row_bytes
        has_whole_rows = num_blocks == 1 or pages.stride(0) % unit == 0
        num_rows = spec.page_bytes // row_bytes
        has_aligned_scales = not is_int8 or num_rows * head_dim % SCALE_BYTES == 0
        if rest or not num_kv_heads or not has_whole_rows or not has_aligned_scales:
            raise RefusedError(
                f"{cls.name} cannot use the KV cache of {spec.layer.name}: the page size is "
                f"{spec.page_bytes} bytes with a stride of {pages.stride(0)}; the page size must "
                f"be a multiple of {pair_bytes} (K and V of one head), and the stride must fit "
                f"rows of {row_bytes}"
            )
        if is_int8:
            return pages
        sizes = (num_blocks, NUM_SIDES, num_kv_heads, spec.block_size, head_dim)
        return pages.view(dtype).view(sizes)


def split_pages(kv_cache: Tensor, shape: AttentionShape) -> Pages:
    """Return the elements and scales of a tensor from `kv_view`, as views."""
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
