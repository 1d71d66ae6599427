"""A page of latents is `[S, C + P]`: a row a token, the latent before the rotated key.

The backends of this package for latent attention share it, so blocks written by one can be read by
another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from quire.errors import RefusedError

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def view_rows(raw: Tensor, spec: KVCacheSpec, num_blocks: int, backend_name: str) -> Tensor:
    """Return the raw bytes as `[B, S, C + P]`.

    Raises:
        RefusedError: The elements are of another type, or a page is not one row a token; or the
            padding between pages is not whole numbers.
    """
    dtype = DTYPES.get(spec.kv_dtype)
    if dtype is None:
        raise RefusedError(
            f"{backend_name} cannot read latents of type {spec.kv_dtype}; take --kv-cache-dtype "
            f"auto, or one of {', '.join(DTYPES)}"
        )
    page_bytes = spec.block_size * spec.layer.head_dim * dtype.itemsize
    pages = raw.view(num_blocks, spec.page_bytes) if raw.dim() == 1 else raw
    if spec.page_bytes != page_bytes or (num_blocks > 1 and pages.stride(0) % dtype.itemsize):
        raise RefusedError(
            f"{backend_name} cannot use the KV cache of {spec.layer.name}: its pages have "
            f"{spec.page_bytes} bytes every {pages.stride(0)}, and {spec.block_size} rows of a "
            f"latent and a rotated key have {page_bytes}; such layers need KV-cache spec "
            "'mla_attention'"
        )
    return pages.view(dtype).view(num_blocks, spec.block_size, spec.layer.head_dim)
