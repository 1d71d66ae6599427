"""PyTorch's variable-length attention kernel, where this version of torch and this GPU have it.

The supported options are read from the function's signature once. Its causal mask is aligned to the
last query and the last key of a request, so a request's keys may start at the first key that one of
its queries attends to. Only those keys are gathered, because a hidden NaN value would still be
added. Requests without earlier context need no gathering at all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.interfaces.attention import AttentionLayerParams, AttentionShape, StepLayout
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.torch.spans import IntArray

MAX_HEAD_DIM = 256
MIN_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class VarlenBatch:
    """Arguments of the kernel for a step of T' tokens without padding and L keys of all requests.

    Attributes:
        query_start: `[R + 1]` int32, start of each request's queries.
        key_start: `[R + 1]` int32, start of each request's keys.
        max_query_len: Maximum number of queries of a request.
        max_key_len: Maximum number of keys of a request.
        num_tokens: T'.
        num_keys: L.
        context: `[2 * L * K]` int64, rows of the cache: all of K, then all of V; None: the step's
            own k and v are all the keys.
    """

    query_start: Tensor
    key_start: Tensor
    max_query_len: int
    max_key_len: int
    num_tokens: int
    num_keys: int
    context: Tensor | None


@dataclass(frozen=True, slots=True)
class VarlenAttention:
    """Attention in one call for any mix of prefill and decode.

    Attributes:
        attend: `torch.nn.attention.varlen.varlen_attn`, or an equivalent function.
        supports_gqa: Whether it takes fewer key heads than query heads.
    """

    attend: Callable[..., Any]  # torch's function returns a tuple if more outputs are requested
    supports_gqa: bool

    @classmethod
    def if_available(cls, shape: AttentionShape) -> VarlenAttention | None:
        """Return it if this version of torch and the GPU support it, otherwise None."""
        if shape.device.type != "cuda":
            return None
        if torch.cuda.get_device_capability(shape.device) < MIN_CAPABILITY:
            return None
        from torch.nn.attention.varlen import varlen_attn  # lazy: it imports torch._dynamo

        arguments = inspect.signature(varlen_attn).parameters.keys()
        if not {"scale", "window_size"} <= arguments:
            return None
        return cls(varlen_attn, "enable_gqa" in arguments)

    def supports(self, shape: AttentionShape, layer: AttentionLayerParams) -> bool:
        """Return whether it supports the shape and the features of a layer."""
        is_half = shape.dtype in (torch.float16, torch.bfloat16)
        has_heads = self.supports_gqa or shape.num_heads == shape.num_kv_heads
        has_head_dim = shape.head_dim % 8 == 0 and shape.head_dim <= MAX_HEAD_DIM
        has_shape = is_half and has_heads and has_head_dim and not shape.batch_invariant
        features = (
            layer.logit_soft_cap,
            layer.sinks,
            layer.attention_chunk,
            layer.alibi_slopes,
        )
        return has_shape and all(feature is None for feature in features)

    def run(
        self,
        q: Tensor,  # [T, H, D], padding included
        k: Tensor,  # [L, K, D], or the step's own [T, K, D]
        v: Tensor,
        batch: VarlenBatch,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Attend; padding rows of the output are undefined."""
        groups = {"enable_gqa": True} if self.supports_gqa else {}
        left = -1 if layer.sliding_window is None else layer.sliding_window - 1
        outputs: Tensor = self.attend(
            q[: batch.num_tokens],
            k[: batch.num_keys],
            v[: batch.num_keys],
            batch.query_start,
            batch.key_start,
            batch.max_query_len,
            batch.max_key_len,
            scale=layer.scale,
            window_size=(left, 0),
            **groups,
        )
        if batch.num_tokens == len(q):
            return outputs
        out = torch.empty_like(q)
        out[: batch.num_tokens] = outputs
        return out


def num_keys_seen(step: StepLayout, bounds: AttentionBounds) -> IntArray:  # [R]
    """Return the number of keys that the queries of each request attend to together."""
    lens = np.array(step.seq_lens_host, np.int64)
    return lens - bounds.first_key(lens - np.array(step.query_lens_host, np.int64))


def build_varlen(
    step: StepLayout, bounds: AttentionBounds, rows: CacheRows, *, may_use_own: bool
) -> VarlenBatch:
    """Build the arguments for a step whose lengths are known on the host.

    Args:
        step: The step.
        bounds: Attention bounds of its queries.
        rows: Row indices of tokens in the cache.
        may_use_own: Whether the step's own k and v equal what the cache stores of them.
    """
    device, query_lens = step.block_table.device, np.array(step.query_lens_host, np.int64)
    is_fresh = may_use_own and step.query_lens_host == step.seq_lens_host
    key_lens = query_lens if is_fresh else num_keys_seen(step, bounds)
    query_start = _starts(query_lens, device)
    key_start = query_start if is_fresh else _starts(key_lens, device)
    return VarlenBatch(
        query_start,
        key_start,
        int(query_lens.max()),
        int(key_lens.max()),
        int(query_lens.sum()),
        int(key_lens.sum()),
        None if is_fresh else _context(step, key_lens, rows),
    )


def _starts(lens: IntArray, device: torch.device) -> Tensor:  # [R + 1]
    starts = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=starts[1:])
    return torch.from_numpy(starts).to(device)


def _context(step: StepLayout, key_lens: IntArray, rows: CacheRows) -> Tensor:
    """Return the rows of each request's keys, one request after the other, `[2 * L * K]`."""
    ends, lens = key_lens.cumsum(), np.array(step.seq_lens_host, np.int64)
    requests = np.repeat(np.arange(len(key_lens)), key_lens)  # [L]
    positions = np.arange(len(requests)) + (lens - ends)[requests]
    found = torch.from_numpy(np.stack((requests, positions))).to(step.block_table.device)
    block_ids = step.block_table[found[0], found[1] // rows.block_size].long()
    first = block_ids * rows.page_rows + found[1] % rows.block_size  # [L]
    return (first[None, :, None] + rows.head_rows[:, None, :]).view(-1)
