"""A latent attention layer has many query heads, and one row a token that serves them all."""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.attention import AttentionShape
from quire.interfaces.mla import MLABackend, MLAShape
from quire.interfaces.model import ForwardBatch
from quire.layers.attention.caching_layer import CachingLayer
from quire.layers.context import LayerContext
from quire.layers.parallel import share


class MLAAttention(CachingLayer[MLABackend]):
    """Multi-head latent attention of one layer over the paged cache, up-projections left out.

    The model multiplies its queries by the up-projection of keys before, and the answer by that of
    values after: it has the projections, and this layer only reads and writes latents.

    Args:
        name: Module path in the model, as in `ModelDescription.kv_layers`.
        num_heads: Query heads of the whole model.
        latent_dim: Numbers of a latent.
        rope_dim: Numbers of the rotated key.
        scale: Factor on the logits of attention.
        context: Where and how to build.
    """

    contract = MLABackend

    def __init__(
        self,
        name: str,
        num_heads: int,
        latent_dim: int,
        rope_dim: int,
        scale: float,
        context: LayerContext,
    ) -> None:
        num_local_heads = len(share("num_attention_heads", num_heads, context.tp))
        super().__init__(name, num_local_heads, 1, latent_dim + rope_dim)
        self.latent_dim = latent_dim
        self.rope_dim = rope_dim
        self.scale = scale

    def backend_shape(self, shape: AttentionShape) -> AttentionShape:
        """Say which part of a row is the latent."""
        return MLAShape.of(shape, self.latent_dim, self.rope_dim)

    def forward(
        self,
        q_latent: Tensor,  # [T, H, C]
        q_rope: Tensor,  # [T, H, P], rotated
        latent: Tensor,  # [T, C], normed
        k_rope: Tensor,  # [T, P], rotated
        batch: ForwardBatch,
    ) -> Tensor:  # [T, H, C]
        """Keep `latent` and `k_rope` in the cache, and attend from the queries.

        Raises:
            RequestFailedError: The backend returned something else than `[T, H, C]` like
                `q_latent`.
        """
        backend, kv_cache = self._bound()
        metadata = batch.attention[self.place]
        out = backend.forward(q_latent, q_rope, latent, k_rope, kv_cache, metadata, self.scale)
        self._check(out, q_latent.shape, q_latent)
        return out
