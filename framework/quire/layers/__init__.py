"""Layers for model authors, with tensor parallelism and LoRA built in.

Names are imported on first access, so that a torch-free `describe` can use
`quire.layers.config_values` and `quire.layers.attention.rope_parameters` without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quire.layers.activation import GeluTanhAndMul, SiluAndMul
    from quire.layers.attention.attention_layer import Attention
    from quire.layers.attention.mla_layer import MLAAttention
    from quire.layers.attention.rotary import RotaryEmbedding, rotate
    from quire.layers.context import LayerContext
    from quire.layers.embedding import LMHead, VocabParallelEmbedding
    from quire.layers.layer import Layer
    from quire.layers.linear.linear_layers import (
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        RowParallelLinear,
    )
    from quire.layers.norm import QKNorm, RMSNorm
    from quire.layers.parallel import SingleDevice, TensorParallelGroup

_MODULES = {
    "Attention": "attention.attention_layer",
    "ColumnParallelLinear": "linear.linear_layers",
    "GeluTanhAndMul": "activation",
    "LMHead": "embedding",
    "Layer": "layer",
    "LayerContext": "context",
    "MLAAttention": "attention.mla_layer",
    "MergedColumnParallelLinear": "linear.linear_layers",
    "QKNorm": "norm",
    "QKVParallelLinear": "linear.linear_layers",
    "RMSNorm": "norm",
    "RotaryEmbedding": "attention.rotary",
    "RowParallelLinear": "linear.linear_layers",
    "SiluAndMul": "activation",
    "SingleDevice": "parallel",
    "TensorParallelGroup": "parallel",
    "VocabParallelEmbedding": "embedding",
    "rotate": "attention.rotary",
}

__all__ = [
    "Attention",
    "ColumnParallelLinear",
    "GeluTanhAndMul",
    "LMHead",
    "Layer",
    "LayerContext",
    "MLAAttention",
    "MergedColumnParallelLinear",
    "QKNorm",
    "QKVParallelLinear",
    "RMSNorm",
    "RotaryEmbedding",
    "RowParallelLinear",
    "SiluAndMul",
    "SingleDevice",
    "TensorParallelGroup",
    "VocabParallelEmbedding",
    "rotate",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'quire.layers' has no attribute {name!r}")
    return getattr(import_module(f"quire.layers.{_MODULES[name]}"), name)
