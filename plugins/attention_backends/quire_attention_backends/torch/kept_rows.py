"""Writing and reading of cache rows by index in plain PyTorch, for every cache element type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from quire.interfaces.attention import AttentionLayerParams
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.shared.kv_layout import Pages

if TYPE_CHECKING:
    from torch import Tensor

FLOAT8_MAX = 448.0
INT8_MAX = 127.0


def write_rows(
    pages: Pages,
    rows: CacheRows,
    at: Tensor,  # [2 * T * K] int64, row indices of K and then of V
    k: Tensor,  # [T, K, D]
    v: Tensor,  # [T, K, D]
    layer: AttentionLayerParams,
) -> Tensor:  # [2 * T * K, D]
    """Write K and V of a step and return them as stored, which may be codes."""
    if pages.kind == "float8":
        new = torch.cat((float8_codes(k, layer.k_scale), float8_codes(v, layer.v_scale)))
    elif pages.kind == "int8":
        new, scales = int8_codes(torch.cat((k, v)).flatten(0, 1))
        data, kept_scales = _by_page(pages)
        index = at // rows.page_rows, at % rows.page_rows
        data[index], kept_scales[index] = new, scales
        return new
    else:
        new = torch.cat((k, v)).to(pages.data.dtype)
    new = new.view(-1, k.shape[-1])
    rows.flat(pages.data).index_copy_(0, at, new)
    return new


def read_rows(
    pages: Pages,
    rows: CacheRows,
    at: Tensor,  # [2 * n] int64, row indices of K and then of V
    gathered: Tensor,  # [at least 2 * n, D] of the cache's type, the buffer; not used for int8
    layer: AttentionLayerParams,
) -> Tensor:  # [2 * n, D]
    """Return the elements of rows, decoded to float32 if the cache has codes."""
    if pages.kind == "int8":
        data, scales = _by_page(pages)
        index = at // rows.page_rows, at % rows.page_rows
        return data[index] * scales[index].unsqueeze(1)
    found = torch.index_select(rows.flat(pages.data), 0, at, out=gathered[: len(at)])
    if pages.kind == "plain":
        return found
    values = found.view(torch.float8_e4m3fn).float()
    k, v = values.chunk(2)
    k.mul_(layer.k_scale)
    v.mul_(layer.v_scale)
    return values


def float8_codes(x: Tensor, scale: float) -> Tensor:
    """Return the codes of x / scale, uint8; magnitudes beyond 448 become 448."""
    scaled = (x.float() / scale).clamp_(-FLOAT8_MAX, FLOAT8_MAX)
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8)


def int8_codes(x: Tensor) -> tuple[Tensor, Tensor]:  # [n, D] -> [n, D] int8, [n] float32
    """Return the codes of rows and their scales; a row of zeros has the scale zero."""
    x = x.float()
    scales = x.abs().amax(1) / INT8_MAX
    divisors = torch.where(scales > 0, scales, 1.0).unsqueeze(1)
    codes = (x / divisors).round_().clamp_(-INT8_MAX, INT8_MAX)
    return codes.to(torch.int8), scales


def _by_page(pages: Pages) -> tuple[Tensor, Tensor]:  # [B, rows, D], [B, rows]
    if pages.scales is None:
        raise ValueError(f"pages of kind {pages.kind} have no scales")
    return pages.data.flatten(1, 3), pages.scales.flatten(1)
