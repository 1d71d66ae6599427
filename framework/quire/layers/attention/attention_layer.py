"""Attention layer over the paged KV cache; its backend and cache memory are bound after loading."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.attention import AttentionBackend, AttentionLayerParams, RotaryStep
from quire.interfaces.model import ForwardBatch
from quire.layers.attention.caching_layer import CachingLayer
from quire.layers.attention.rotary import Rotation, rotate
from quire.layers.context import LayerContext
from quire.layers.layer import frozen
from quire.layers.parallel import shard, shard_kv_heads
from quire.layers.qk_norm import HeadNorms
from quire.layers.returned import check_returned


class Attention(CachingLayer[AttentionBackend]):
    """Causal attention of one layer over the paged KV cache.

    Args:
        name: Module path in the model, as in `ModelDescription.kv_layers`.
        num_heads: Number of query heads of the whole model.
        num_kv_heads: Number of key/value heads of the whole model.
        head_dim: Elements per head.
        scale: Factor on the attention logits.
        context: Settings to build the layer with.
        sliding_window: Number of tokens a query attends to, itself included; None: all.
        logit_soft_cap: Bound on the attention logits, applied by tanh.
        attention_chunk: Number of tokens of a chunk; a query attends to its own chunk only. None:
            all.
        has_sinks: Whether the checkpoint has a sink for each query head. The layer's `KVLayer` must
            have the same value, so that a backend with sinks is chosen.
        alibi_slopes: Slope of each query head of the whole model, for linear biases by distance
            instead of a rotary embedding: `alibi_slopes(num_heads)` of `quire.layers`. None: there
            are none. The layer's `KVLayer` must have `has_alibi` alike.

    Attributes:
        sinks: `[H]` float32, the parameter of that name, if there is one.
        params: Layer parameters for the backend. From `finish_loading` on they include the scales
            of a float8 cache, if the checkpoint has them.
    """

    contract = AttentionBackend
    sinks: Tensor | None

    def __init__(
        self,
        name: str,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        context: LayerContext,
        *,
        sliding_window: int | None = None,
        logit_soft_cap: float | None = None,
        attention_chunk: int | None = None,
        has_sinks: bool = False,
        alibi_slopes: Sequence[float] | None = None,
    ) -> None:
        local_heads = shard("num_attention_heads", num_heads, context.tp)
        num_kv_heads = len(shard_kv_heads(num_kv_heads, context.tp))
        super().__init__(name, len(local_heads), num_kv_heads, head_dim)
        self.has_sinks = has_sinks
        self.has_alibi = alibi_slopes is not None
        self._all_heads, self._heads = num_heads, local_heads
        self._width = len(local_heads) * head_dim  # elements of all query heads
        self._kv_scales: dict[str, float] = {}
        sinks = frozen((len(local_heads),), torch.float32, context.device) if has_sinks else None
        self.register_parameter("sinks", sinks)
        self.params = AttentionLayerParams(
            scale,
            sliding_window,
            logit_soft_cap,
            sinks,
            attention_chunk=attention_chunk,
            alibi_slopes=_own_slopes(alibi_slopes, local_heads, context),
        )

    def optional_weights(self, path: str) -> Mapping[str, str]:
        """Return the names of a float8 cache's scales, by layer, parent or projection."""
        parent = path[: path.rfind(".") + 1]  # with its dot, or nothing
        return {
            f"{owner}{side}_scale": f"{side}_scale"
            for side in ("k", "v")
            for owner in (f"{path}.", parent, f"{parent}attn.", f"{parent}{side}_proj.")
        }

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[H]` of the whole model for sinks, and `[]` for scales."""
        del part
        return (self._all_heads,) if parameter == "sinks" else ()

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Load the sinks of this device's heads, or a scale.

        Raises:
            CheckpointCorruptError: A scale is not positive and finite.
        """
        if parameter == "sinks":
            super().load_weight(parameter, tensor[self._heads.start : self._heads.stop], part)
            return
        scale = float(tensor)
        if not (math.isfinite(scale) and scale > 0):
            raise CheckpointCorruptError(
                f"{parameter} of attention layer {self.name} is {scale}: the scale of a float8 "
                "cache must be positive and finite; remove it from the checkpoint to use 1"
            )
        self._kv_scales[parameter] = scale

    def finish_loading(self) -> None:
        """Add the checkpoint's scales to the backend's parameters."""
        self.params = replace(
            self.params,
            k_scale=self._kv_scales.get("k_scale", 1.0),
            v_scale=self._kv_scales.get("v_scale", 1.0),
        )

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        batch: ForwardBatch,
    ) -> Tensor:  # [T, H * D]
        """Write `k` and `v` to the cache, and return the attention of `q`.

        Raises:
            RequestFailedError: The backend's result is not `[T, H, D]` of `q`'s dtype and device.
        """
        backend, kv_cache, metadata = self._bound(batch)
        out = backend.forward(q, k, v, kv_cache, metadata, self.params)
        check_returned(out, q.shape, q.dtype, q.device, self._callee)
        return out.reshape(-1, self._width)

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, (H + 2 * K) * D], contiguous; may be written over
        rotation: Rotation,
        norm: HeadNorms | None,
        batch: ForwardBatch,
    ) -> Tensor:  # [T, H * D]
        """Apply norm and rotation to q and k of the projection, then do what `forward` does.

        A backend with `fuses_rotary` does all of it in one pass with the write to the cache, but
        for norms that are not fused.

        Raises:
            RequestFailedError: The backend's result is not `[T, H, D]` of `qkv`'s dtype and device.
        """
        backend, kv_cache, metadata = self._bound(batch)
        num_rotated = self.num_heads + self.num_kv_heads
        heads = qkv.view(-1, num_rotated + self.num_kv_heads, self.head_dim)
        if norm is not None and not norm.is_fused:
            norm(heads[:, :num_rotated])
            norm = None
        if backend.fuses_rotary:
            step = _rotary_step(rotation, norm)
            out = backend.forward_rotary(heads, step, kv_cache, metadata, self.params)
            shape = (len(heads), self.num_heads, self.head_dim)
            check_returned(out, shape, heads.dtype, heads.device, self._callee)
            return out.reshape(-1, self._width)
        qk = heads[:, :num_rotated]
        qk = rotate(qk if norm is None else norm(qk), rotation)
        return self.forward(
            qk[:, : self.num_heads], qk[:, self.num_heads :], heads[:, num_rotated:], batch
        )


def _own_slopes(
    slopes: Sequence[float] | None, heads: range, context: LayerContext
) -> Tensor | None:
    if slopes is None:
        return None
    own = slopes[heads.start : heads.stop]
    return torch.tensor(own, dtype=torch.float32, device=context.device)


def _rotary_step(rotation: Rotation, norm: HeadNorms | None) -> RotaryStep:
    if norm is None:
        return RotaryStep(rotation.table, rotation.positions)
    return RotaryStep(rotation.table, rotation.positions, norm.weight, norm.eps)
