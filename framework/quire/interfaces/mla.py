"""The interface of backends for multi-head latent attention (MLA).

The cache holds one latent vector and one rotated key per token, shared by all heads, instead of K
and V for each head. The model fuses its up-projections into the query and into its output
projection (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1). So many query heads attend to one key of
C + P elements, whose first C elements are also the value:

    score = q_latent . latent + q_rope . k_rope        out = sum of softmax(score) * latent

Dimensions as in `quire.interfaces.attention`; a latent has C elements, a rotated key P. A token's
row in the cache has C + P elements, the latent first. The contract applies to layers whose KV-cache
spec has the layout "mla"; their `AttentionQuery` and `AttentionShape` have one KV head of
`head_dim` C + P.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

from quire.interfaces.attention import AttentionShape, KVBackend

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAShape(AttentionShape):
    """Sizes that a backend is built for; `head_dim` is `latent_dim + rope_dim`."""

    latent_dim: int  # C
    rope_dim: int  # P

    @classmethod
    def of(cls, shape: AttentionShape, latent_dim: int, rope_dim: int) -> Self:
        """Return `shape` extended by the sizes of the latent and of the rotated key."""
        sizes = {field.name: getattr(shape, field.name) for field in fields(AttentionShape)}
        return cls(**sizes, latent_dim=latent_dim, rope_dim=rope_dim)


class MLABackend(KVBackend):
    """Causal latent attention over a paged cache, for one KV group on one device."""

    shape: MLAShape

    @abstractmethod
    def forward(
        self,
        q_latent: Tensor,  # [T, H, C]
        q_rope: Tensor,  # [T, H, P], rotated
        latent: Tensor,  # [T, C], normed
        k_rope: Tensor,  # [T, P], rotated
        kv_cache: Tensor,  # as `kv_view` returned it; written in place
        metadata: Any,  # as `prepare` returned it
        scale: float,
    ) -> Tensor:  # [T, H, C]
        """Write `latent` and `k_rope` to their slots, and return attention over the context."""
