"""An attention layer knows its heads; who attends, and in which memory, is bound later."""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.attention import AttentionBackend, AttentionLayerParams, RotaryStep
from quire.interfaces.model import ForwardBatch
from quire.layers.caching_layer import CachingLayer
from quire.layers.context import LayerContext
from quire.layers.norm import QKNorm
from quire.layers.parallel import share, share_kv_heads
from quire.layers.rotary import Rotation, rotate


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
    """

    contract = AttentionBackend

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
    ) -> None:
        super().__init__(
            name,
            len(share("num_attention_heads", num_heads, context.tp)),
            len(share_kv_heads(num_kv_heads, context.tp)),
            head_dim,
        )
        self.params = AttentionLayerParams(
            scale, sliding_window, logit_soft_cap, attention_chunk=attention_chunk
        )

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        batch: ForwardBatch,
    ) -> Tensor:  # [T, H * D]
        """Keep `k` and `v` in the cache, and attend from `q`."""
        backend, kv_cache = self._bound()
        out = backend.forward(q, k, v, kv_cache, batch.attention[self.place], self.params)
        return out.flatten(1)

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, (H + 2 * K) * D], contiguous; may be written over
        rotation: Rotation,
        norm: QKNorm | None,
        batch: ForwardBatch,
    ) -> Tensor:  # [T, H * D]
        """Do the same from what was projected: norm and rotate q and k first.

        A backend that can does all of it in one pass with the write to the cache.
        """
        backend, kv_cache = self._bound()
        num_rotated = self.num_heads + self.num_kv_heads
        heads = qkv.view(-1, num_rotated + self.num_kv_heads, self.head_dim)
        if backend.fuses_rotary:
            step, metadata = _rotary_step(rotation, norm), batch.attention[self.place]
            return backend.forward_rotary(heads, step, kv_cache, metadata, self.params).flatten(1)
        qk = heads[:, :num_rotated]
        qk = rotate(qk if norm is None else norm(qk), rotation)
        return self.forward(
            qk[:, : self.num_heads], qk[:, self.num_heads :], heads[:, num_rotated:], batch
        )


def _rotary_step(rotation: Rotation, norm: QKNorm | None) -> RotaryStep:
    if norm is None:
        return RotaryStep(rotation.table, rotation.positions)
    return RotaryStep(rotation.table, rotation.positions, norm.weight, norm.eps)
