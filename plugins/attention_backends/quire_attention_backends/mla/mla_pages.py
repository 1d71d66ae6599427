"""Page layout of latents, `[S, C + P]`: one row per token, the latent before the rotated key.

The MLA backends of this package share the layout, so blocks written by one can be read by another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from quire.errors import RefusedError
from quire.interfaces.mla import MLABackend

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LatentRowsBackend(MLABackend):
    """Base of the MLA backends of this package.

    Attributes:
        name: Name of the backend for error messages.
    """

    name: ClassVar[str]

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as `[B, S, C + P]`.

        Raises:
            RefusedError: The element type is not supported, a page is not one row per token, or the
                distance between pages is not a multiple of an element.
        """
        dtype = DTYPES.get(spec.kv_dtype)
        if dtype is None:
            raise RefusedError(
                f"{cls.name} does not support a KV cache of type {spec.kv_dtype} for latents; use "
                f"--kv-cache-dtype auto, or one of {', '.join(DTYPES)}"
            )
        page_bytes = spec.block_size * spec.layer.head_dim * dtype.itemsize
        pages = raw.view(num_blocks, spec.page_bytes) if raw.dim() == 1 else raw
        if spec.page_bytes != page_bytes or (num_blocks > 1 and pages.stride(0) % dtype.itemsize):
            raise RefusedError(
                f"{cls.name} cannot use the KV cache of {spec.layer.name}: the page size is "
                f"{spec.page_bytes} bytes with a stride of {pages.stride(0)}, but "
                f"{spec.block_size} rows of a latent and a rotated key take {page_bytes}; MLA "
                "layers need the KV-cache spec 'mla_attention'"
            )
        return pages.view(dtype).view(num_blocks, spec.block_size, spec.layer.head_dim)
