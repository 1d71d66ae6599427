"""Layers for model authors, with tensor parallelism and LoRA built in.

Names are imported on first access, so that a torch-free `describe` can use
`quire.layers.config_values` and `quire.layers.attention.rope_parameters` without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.layers.activation import (
        XIELU,
        Activation,
        GatedActivation,
        GeluTanhAndMul,
        SiluAndMul,
        make_activation,
    )
    from quire.layers.attention.alibi import alibi_slopes
    from quire.layers.attention.attention_layer import Attention
    from quire.layers.attention.mla_layer import MLAAttention
    from quire.layers.attention.rotary import RotaryEmbedding, rotate
    from quire.layers.context import LayerContext
    from quire.layers.embedding import LMHead, PositionEmbedding, VocabParallelEmbedding
    from quire.layers.layer import Layer
    from quire.layers.linear.linear_layers import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        ReplicatedLinear,
        RowParallelLinear,
    )
    from quire.layers.moe.clamped_activation import ClampedSwiGLU
    from quire.layers.moe.experts import Experts
    from quire.layers.moe.moe_layer import MoE
    from quire.layers.moe.router import MoERouter, Routed
    from quire.layers.moe.routing import Routing
    from quire.layers.norm import LayerNorm, RMSNorm
    from quire.layers.parallel import SingleDevice, TensorParallelGroup
    from quire.layers.qk_norm import QKLayerNorm, QKNorm, QKProjectionNorm, ValueNorm

_MODULES = {
    "Activation": "activation",
    "Attention": "attention.attention_layer",
    "ClampedSwiGLU": "moe.clamped_activation",
    "ColumnParallelLinear": "linear.linear_layers",
    "GatedActivation": "activation",
    "Experts": "moe.experts",
    "GeluTanhAndMul": "activation",
    "LMHead": "embedding",
    "Layer": "layer",
    "LayerContext": "context",
    "LayerNorm": "norm",
    "MLAAttention": "attention.mla_layer",
    "MergedColumnParallelLinear": "linear.linear_layers",
    "PositionEmbedding": "embedding",
    "QKLayerNorm": "qk_norm",
    "QKNorm": "qk_norm",
    "QKProjectionNorm": "qk_norm",
    "MoE": "moe.moe_layer",
    "QKVParallelLinear": "linear.linear_layers",
    "RMSNorm": "norm",
    "ReplicatedLinear": "linear.linear_layers",
    "RotaryEmbedding": "attention.rotary",
    "Routed": "moe.router",
    "MoERouter": "moe.router",
    "Routing": "moe.routing",
    "RowParallelLinear": "linear.linear_layers",
    "SiluAndMul": "activation",
    "SingleDevice": "parallel",
    "TensorParallelGroup": "parallel",
    "ValueNorm": "qk_norm",
    "VocabParallelEmbedding": "embedding",
    "XIELU": "activation",
    "alibi_slopes": "attention.alibi",
    "make_activation": "activation",
    "rotate": "attention.rotary",
}

__all__ = [
    "XIELU",
    "Activation",
    "Attention",
    "ClampedSwiGLU",
    "ColumnParallelLinear",
    "Experts",
    "GatedActivation",
    "GeluTanhAndMul",
    "LMHead",
    "Layer",
    "LayerContext",
    "LayerNorm",
    "MLAAttention",
    "MergedColumnParallelLinear",
    "MoE",
    "MoERouter",
    "PositionEmbedding",
    "QKLayerNorm",
    "QKNorm",
    "QKProjectionNorm",
    "QKVParallelLinear",
    "RMSNorm",
    "ReplicatedLinear",
    "RotaryEmbedding",
    "Routed",
    "Routing",
    "RowParallelLinear",
    "SiluAndMul",
    "SingleDevice",
    "TensorParallelGroup",
    "ValueNorm",
    "VocabParallelEmbedding",
    "alibi_slopes",
    "make_activation",
    "rotate",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'quire.layers' has no attribute {name!r}")
    return getattr(import_module(f"quire.layers.{_MODULES[name]}"), name)
