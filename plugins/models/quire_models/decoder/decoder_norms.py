"""Norms by their options."""

from __future__ import annotations

from quire.layers import LayerContext, LayerNorm, QKNorm, RMSNorm
from quire.layers.qk_norm import HeadNorms, QKLayerNorm, QKProjectionNorm, ValueNorm, Vectors
from quire_models.decoder.options.attention_config import AttentionConfig, NormConfig

Norm = RMSNorm | LayerNorm


def make_norm(size: int, norm: NormConfig, context: LayerContext) -> Norm:
    """Return a norm over `size` elements, called with a residual or without."""
    if norm.kind == "layer":
        return LayerNorm(
            size,
            norm.eps,
            context,
            weight_offset=norm.weight_offset,
            has_weight=norm.has_weight,
            has_bias=norm.has_bias,
        )
    return RMSNorm(
        size,
        norm.eps,
        context,
        weight_offset=norm.weight_offset,
        has_weight=norm.has_weight,
        rounds_before_weight=not norm.rounds_last,
    )


VECTORS: dict[str, Vectors] = {
    "head": "shared",
    "heads": "own",
    "listed": "listed",
    "whole": "flat",
}


def make_qk_norm(
    attention: AttentionConfig, context: LayerContext, keys_of: HeadNorms | None = None
) -> HeadNorms | None:
    """Return the norm of queries and keys, if there is one.

    Args:
        attention: Options of the layer's attention.
        context: Settings to build the layer with.
        keys_of: Norm of the layer whose keys are used; None: the layer has its own.
    """
    if attention.qk_norm is None:
        return None
    norm, over = attention.qk_norm.norm, attention.qk_norm.over
    kind: type[HeadNorms] = QKLayerNorm if norm.kind == "layer" else QKNorm
    kind = QKProjectionNorm if over == "whole" else kind
    return kind(
        attention.num_heads,
        attention.num_kv_heads,
        attention.head_dim,
        norm.eps,
        context,
        vectors=VECTORS[over],
        has_weight=norm.has_weight,
        weight_offset=norm.weight_offset,
        order=attention.head_order,
        rounds_before_weight=not norm.rounds_last,
        keys_of=keys_of,
    )


def make_value_norm(attention: AttentionConfig, context: LayerContext) -> ValueNorm | None:
    """Return the norm of values, if there is one; its epsilon is that of queries and keys."""
    if not attention.has_value_norm or attention.qk_norm is None:
        return None
    eps = attention.qk_norm.norm.eps
    return ValueNorm(attention.num_kv_heads, attention.head_dim, eps, context)
