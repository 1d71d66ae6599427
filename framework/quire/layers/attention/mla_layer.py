"""Multi-head latent attention (MLA) layer: the cache has one row per token for all query heads."""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.attention import AttentionShape
from quire.interfaces.mla import MLABackend, MLAShape
from quire.interfaces.model import ForwardBatch
from quire.layers.attention.caching_layer import CachingLayer
from quire.layers.context import LayerContext
from quire.layers.parallel import shard
from quire.layers.returned import check_returned


class MLAAttention(CachingLayer[MLABackend]):
    """Multi-head latent attention of one layer over the paged cache, without the up-projections.

    The projections belong to the model: it multiplies the queries by the keys' up-projection
    before, and the output by the values' up-projection after. This layer only uses latents.

    Args:
        name: Module path in the model, as in `ModelDescription.kv_layers`.
        num_heads: Number of query heads of the whole model.
        latent_dim: Elements of a latent.
        rope_dim: Elements of the rotated key.
        scale: Factor on the attention logits.
        context: Settings to build the layer with.
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
        num_local_heads = len(shard("num_attention_heads", num_heads, context.tp))
        super().__init__(name, num_local_heads, 1, latent_dim + rope_dim)
        self.latent_dim = latent_dim
        self.rope_dim = rope_dim
        self.scale = scale

    def backend_shape(self, shape: AttentionShape) -> AttentionShape:
        """Return the shape extended by the sizes of the latent and of the rotated key."""
        return MLAShape.of(shape, self.latent_dim, self.rope_dim)

    def forward(
        self,
        q_latent: Tensor,  # [T, H, C]
        q_rope: Tensor,  # [T, H, P], rotated
        latent: Tensor,  # [T, C], normed
        k_rope: Tensor,  # [T, P], rotated
        batch: ForwardBatch,
    ) -> Tensor:  # [T, H, C]
        """Write `latent` and `k_rope` to the cache, and return the attention of the queries.

        Raises:
            RequestFailedError: The backend's result is not `[T, H, C]` of `q_latent`'s dtype and
                device.
        """
        backend, kv_cache, metadata = self._bound(batch)
        out = backend.forward(q_latent, q_rope, latent, k_rope, kv_cache, metadata, self.scale)
        check_returned(out, q_latent.shape, q_latent.dtype, q_latent.device, self._callee)
        return out
