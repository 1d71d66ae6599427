"""The interface of backends for multi-head latent attention (MLA).

Each token keeps one latent vector and one rotated key that all heads share, instead of K and V for
each head. The model folds its up-projections into the query and into what it makes of the answer
(DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1), so attention is that of many query heads to one
key of C + P numbers, whose first C are the value as well:

    score = q_latent . latent + q_rope . k_rope        out = sum of softmax(score) * latent

Dimensions as in `quire.interfaces.attention`, and C numbers of a latent, P of a rotated key. A
token keeps one row of C + P numbers, the latent first. The contract is spoken by layers whose
KV-cache spec has the layout "mla"; an `AttentionQuery` or `AttentionShape` of theirs has one KV
head of `head_dim` C + P.
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
    """The sizes of the layers of one group; `head_dim` is `latent_dim + rope_dim`."""

    latent_dim: int  # C
    rope_dim: int  # P

    @classmethod
    def of(cls, shape: AttentionShape, latent_dim: int, rope_dim: int) -> Self:
        """Return a shape that says besides which part of a row is the latent."""
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
        kv_cache: Tensor,  # as `kv_view` made it; written in place
        metadata: Any,  # as `prepare` made it
        scale: float,
    ) -> Tensor:  # [T, H, C]
        """Write `latent` and `k_rope` to their slots, then attend to the whole context."""
