"""An attention layer knows its heads; who attends, and in which memory, is bound later."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from quire.layers.norm import QKNorm
from quire.layers.parallel import share, share_kv_heads


class Attention(CachingLayer[AttentionBackend]):
    """Causal attention of one layer over the paged KV cache.

    Args:
        name: Module path in the model, as in `ModelDescription.kv_layers`.
        num_heads: Query heads of the whole model.
        num_kv_heads: Key/value heads of the whole model.
        head_dim: Numbers per head.
        scale: Factor on the logits of attention.
        context: Where and how to build.
        sliding_window: Tokens that a query sees, itself included; None: all.
        logit_soft_cap: Bound on the logits of attention, by tanh.
        attention_chunk: Tokens of a chunk; a query sees its own chunk only. None: all.
        has_sinks: Whether the checkpoint has a sink for each query head. Its `KVLayer` says so too,
            so that a backend is chosen that serves them.

    Attributes:
        sinks: `[H]` float32, the parameter of that name, if there is one.
        params: What the backend is told. A checkpoint may bring scales of a float8 cache, which
            are in it from `finish_loading` on.
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
    ) -> None:
        mine = share("num_attention_heads", num_heads, context.tp)
        num_kv_heads = len(share_kv_heads(num_kv_heads, context.tp))
        super().__init__(name, len(mine), num_kv_heads, head_dim)
        self.has_sinks = has_sinks
        self._all_heads, self._heads = num_heads, mine
        self._width = len(mine) * head_dim  # numbers of all query heads
        self._kv_scales: dict[str, float] = {}
        sinks = frozen((len(mine),), torch.float32, context.device) if has_sinks else None
        self.register_parameter("sinks", sinks)
        self.params = AttentionLayerParams(
            scale, sliding_window, logit_soft_cap, sinks, attention_chunk=attention_chunk
        )

    def optional_weights(self, path: str) -> Mapping[str, str]:
        """Return the names of a float8 cache's scales: of the layer, or of what makes K and V."""
        parent = path[: path.rfind(".") + 1]  # with its dot, or nothing
        return {
            f"{owner}{side}_scale": f"{side}_scale"
            for side in ("k", "v")
            for owner in (f"{path}.", parent, f"{parent}attn.", f"{parent}{side}_proj.")
        }

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[H]` of the whole model for sinks; scales are single numbers."""
        del part
        return (self._all_heads,) if parameter == "sinks" else ()

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Keep the sinks of this device's heads, or a scale.

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
                "cache must be positive and finite; leave it out of the checkpoint, and it is 1"
            )
        self._kv_scales[parameter] = scale

    def finish_loading(self) -> None:
        """Tell the backend's parameters which scales the checkpoint brought."""
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
        """Keep `k` and `v` in the cache, and attend from `q`.

        Raises:
            RequestFailedError: The backend returned something else than `[T, H, D]` like `q`.
        """
        backend, kv_cache = self._bound()
        out = backend.forward(q, k, v, kv_cache, batch.attention[self.place], self.params)
        self._check(out, q.shape, q)
        return out.reshape(-1, self._width)

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, (H + 2 * K) * D], contiguous; may be written over
        rotation: Rotation,
        norm: QKNorm | None,
        batch: ForwardBatch,
    ) -> Tensor:  # [T, H * D]
        """Do the same from what was projected: norm and rotate q and k first.

        A backend that can does all of it in one pass with the write to the cache.

        Raises:
            RequestFailedError: The backend returned something else than `[T, H, D]` like `qkv`.
        """
        backend, kv_cache = self._bound()
        num_rotated = self.num_heads + self.num_kv_heads
        heads = qkv.view(-1, num_rotated + self.num_kv_heads, self.head_dim)
        if backend.fuses_rotary:
            step, metadata = _rotary_step(rotation, norm), batch.attention[self.place]
            out = backend.forward_rotary(heads, step, kv_cache, metadata, self.params)
            self._check(out, (len(heads), self.num_heads, self.head_dim), heads)
            return out.reshape(-1, self._width)
        qk = heads[:, :num_rotated]
        qk = rotate(qk if norm is None else norm(qk), rotation)
        return self.forward(
            qk[:, : self.num_heads], qk[:, self.num_heads :], heads[:, num_rotated:], batch
        )


def _rotary_step(rotation: Rotation, norm: QKNorm | None) -> RotaryStep:
    if norm is None:
        return RotaryStep(rotation.table, rotation.positions)
    return RotaryStep(rotation.table, rotation.positions, norm.weight, norm.eps)
