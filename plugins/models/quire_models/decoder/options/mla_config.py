"""Options of a layer's multi-head latent attention (MLA); needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.interfaces.kv_cache import KVLayer
from quire.layers.attention.head_order import head_order
from quire.layers.attention.rope_parameters import RopeParameters
from quire_models.decoder.options.attention_config import NormConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAConfig:
    """Options of multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).

    Attributes:
        num_heads: Number of query heads.
        query_rank: Elements of the latent that queries are projected from; None: they are projected
            from the hidden state.
        latent_dim: Elements of the latent that keys and values are projected from.
        rope_dim: Elements of a head that are rotated; their key is shared by all heads.
        nope_dim: Elements of a query or key head that are not rotated.
        value_dim: Elements of a value head.
        scale: Factor on the attention scores.
        rope: Rotary embedding.
        norm: Options of the latents' norms.
        has_bias: Whether the projections from and to hidden states have biases; a projection of
            queries without a latent has none.
    """

    num_heads: int
    query_rank: int | None
    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    scale: float
    rope: RopeParameters
    norm: NormConfig
    has_bias: bool = False

    @property
    def key_values_of(self) -> None:
        """Index of the layer whose cache is used: none, it has its own."""
        return None

    @property
    def head_dim(self) -> int:
        """Elements of a token's row in the cache."""
        return self.latent_dim + self.rope_dim

    @property
    def query_dim(self) -> int:
        """Elements of a query head."""
        return self.nope_dim + self.rope_dim

    @property
    def query_order(self) -> Sequence[int] | None:
        """Order of a query head's elements in this engine."""
        return _behind(self.nope_dim, head_order(self.rope_dim, self.rope))

    @property
    def row_order(self) -> Sequence[int] | None:
        """Order of the elements of a cached row in this engine."""
        return _behind(self.latent_dim, head_order(self.rope_dim, self.rope))

    def kv_layer(self, name: str, index: int) -> KVLayer:
        """Return the description of the layer's cache."""
        params = (("latent_dim", self.latent_dim),)
        return KVLayer(name, "mla_attention", 1, self.head_dim, params, layer_index=index)

    def num_params(self, hidden_size: int) -> int:
        """Return the number of parameters."""
        queries = self.num_heads * self.query_dim
        rank = self.query_rank
        if rank is None:
            query = hidden_size * queries
        else:
            query = rank * (hidden_size + self.has_bias + queries) + self.norm.num_params(rank)
        row = (hidden_size + self.has_bias) * self.head_dim + self.norm.num_params(self.latent_dim)
        up = self.num_heads * (self.nope_dim + self.value_dim) * self.latent_dim
        output = hidden_size * (self.num_heads * self.value_dim + self.has_bias)
        return query + row + up + output


def _behind(count: int, order: Sequence[int] | None) -> Sequence[int] | None:
    """Return an order of elements behind `count` others that stay."""
    return None if order is None else [*range(count), *(count + index for index in order)]
