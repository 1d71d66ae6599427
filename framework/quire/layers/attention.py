"""An attention layer knows its heads; who attends, and in which memory, is bound later."""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.attention import AttentionBackend, AttentionLayerParams
from quire.interfaces.model import ForwardBatch
from quire.layers.context import LayerContext
from quire.layers.layer import Layer
from quire.layers.parallel import share, share_kv_heads


class Attention(Layer):
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
        super().__init__()
        self.name = name
        self.num_heads = len(share("num_attention_heads", num_heads, context.tp))
        self.num_kv_heads = len(share_kv_heads(num_kv_heads, context.tp))
        self.head_dim = head_dim
        self.params = AttentionLayerParams(
            scale, sliding_window, logit_soft_cap, attention_chunk=attention_chunk
        )
        self.place = -1
        self._backend: AttentionBackend | None = None
        self._kv_cache: Tensor | None = None

    def bind(self, backend: AttentionBackend, kv_cache: Tensor, place: int) -> None:
        """Say who attends, where K and V are kept, and the backend's place in the batch."""
        self._backend = backend
        self._kv_cache = kv_cache
        self.place = place

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        batch: ForwardBatch,
    ) -> Tensor:  # [T, H * D]
        """Keep `k` and `v` in the cache, and attend from `q`."""
        if self._backend is None or self._kv_cache is None:
            raise RuntimeError(f"attention layer {self.name} runs before bind()")
        metadata = batch.attention[self.place]
        out = self._backend.forward(q, k, v, self._kv_cache, metadata, self.params)
        return out.flatten(1)
