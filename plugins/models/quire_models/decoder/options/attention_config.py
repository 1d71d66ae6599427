"""Options of a decoder layer's attention; needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from quire.errors import UnsupportedModelError
from quire.interfaces.kv_cache import KVLayer
from quire.layers.attention.alibi import alibi_slopes
from quire.layers.attention.head_order import head_order
from quire.layers.attention.rope_parameters import RopeParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig:
    """Options of a norm.

    Attributes:
        eps: Term added to the mean square, or to the variance.
        kind: `rms` or `layer`, which subtracts the mean too.
        has_weight: Whether the checkpoint has a weight.
        has_bias: Whether the checkpoint has a bias.
        weight_offset: Offset added to the checkpoint's weight.
        rounds_last: Whether the weight is multiplied in float32, before the result is rounded.
    """

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    has_weight: bool = True
    has_bias: bool = False
    weight_offset: float = 0.0
    rounds_last: bool = False

    def num_params(self, size: int) -> int:
        """Return the number of parameters of a norm over `size` elements."""
        return size * (self.has_weight + self.has_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class QKNormConfig:
    """Norm of queries and keys.

    Attributes:
        norm: Options of the norm.
        over: What is normalised: each `head` with one vector for all query heads and one for all
            key heads; each of the `heads` with a vector of its own, in one tensor, or `listed` in
            one for each head; or the `whole` projection.
        is_after_rope: Whether it comes after the rotary embedding.
    """

    norm: NormConfig
    over: Literal["head", "heads", "listed", "whole"] = "head"
    is_after_rope: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScaling:
    """Factor on queries by their position p: 1 + beta * log(1 + floor((p + shift) / length)).

    Attributes:
        beta: Growth of the factor.
        length: Number of positions with the same factor.
        shift: Number added to a position.
    """

    beta: float
    length: int
    shift: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Options of a layer's grouped-query self-attention.

    Attributes:
        num_heads: Number of query heads.
        num_kv_heads: Number of key/value heads.
        head_dim: Elements per head.
        scale: Factor on the attention scores.
        rope: Rotary embedding; None: there is none.
        qkv_bias: Whether the query, key and value projections have biases.
        output_bias: Whether the output projection has a bias.
        qk_norm: Norm of queries and keys; None: there is none.
        window: Sliding window in tokens, the query included; None: none.
        chunk: Chunk length of local attention in tokens; None: none.
        logit_soft_cap: Soft cap of the attention scores, by tanh; None: none.
        has_sinks: Whether each query head has a learned sink.
        alibi_max_bias: Exponent of the smallest slope of linear biases by distance (ALiBi); None:
            there are no biases.
        alibi_scale: Factor on those slopes.
        has_value_norm: Whether each value head is normalised, without a weight.
        has_key_values: Whether values are the projections of keys, before norm and rotation.
        clip: Bound of the projections' elements; None: none.
        query_scaling: Factor on queries by position; None: none.
        key_values_of: Index of the earlier layer whose keys and values are used, so that the layer
            has no projections of its own to them and no cache; None: it has its own.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeParameters | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QKNormConfig | None = None
    window: int | None = None
    chunk: int | None = None
    logit_soft_cap: float | None = None
    has_sinks: bool = False
    alibi_max_bias: float | None = None
    alibi_scale: float = 1.0
    has_value_norm: bool = False
    has_key_values: bool = False
    clip: float | None = None
    query_scaling: QueryScaling | None = None
    key_values_of: int | None = None

    def __post_init__(self) -> None:
        if self.has_key_values and self.head_order is not None:
            raise UnsupportedModelError(
                "values that are the projections of keys are supported with a rotary embedding of "
                "whole heads only"
            )

    @property
    def head_order(self) -> Sequence[int] | None:
        """Order of a query or key head's elements in this engine."""
        return head_order(self.head_dim, self.rope)

    @property
    def alibi_slopes(self) -> Sequence[float] | None:
        """Slope of each query head's linear biases; None: there are none."""
        if self.alibi_max_bias is None:
            return None
        slopes = alibi_slopes(self.num_heads, self.alibi_max_bias)
        return [self.alibi_scale * slope for slope in slopes]

    @property
    def rope_dim(self) -> int:
        """Elements of a head that its rotary embedding is for."""
        return self.head_dim

    def kv_layer(self, name: str, index: int) -> KVLayer:
        """Return the description of the layer's cache.

        Args:
            name: Module path of the attention layer.
            index: Index of the decoder layer.
        """
        spec, params = self._kv_spec()
        return KVLayer(
            name,
            spec,
            self.num_kv_heads,
            self.head_dim,
            params,
            has_sinks=self.has_sinks,
            has_alibi=self.alibi_max_bias is not None,
            layer_index=index,
        )

    def _kv_spec(self) -> tuple[str, tuple[tuple[str, int], ...]]:
        """Return the name and the parameters of the KV-cache spec."""
        if self.window is not None:
            return "sliding_window", (("window", self.window),)
        if self.chunk is not None:
            return "chunked_local_attention", (("chunk", self.chunk),)
        return "full_attention", ()

    def num_params(self, hidden_size: int) -> int:
        """Return the number of parameters."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        num_keys = 0 if self.key_values_of is not None else 1 if self.has_key_values else 2
        qkv = (queries + num_keys * keys) * (hidden_size + self.qkv_bias)
        output = hidden_size * (queries + self.output_bias)
        return qkv + output + self._num_norm_params() + self.has_sinks * self.num_heads

    def _num_norm_params(self) -> int:
        if self.qk_norm is None:
            return 0
        is_shared = self.qk_norm.over == "head"
        queries, keys = (1, 1) if is_shared else (self.num_heads, self.num_kv_heads)
        heads = queries + (keys if self.key_values_of is None else 0)
        return self.qk_norm.norm.num_params(heads * self.head_dim)
