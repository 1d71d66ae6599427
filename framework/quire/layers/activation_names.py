"""Activations by the names of Hugging Face configs. Torch-free, for models' `describe`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from quire.errors import UnsupportedModelError

ACTIVATIONS: Mapping[str, str] = MappingProxyType(
    {
        "gelu": "gelu",
        "gelu_accurate": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_new": "gelu_tanh",
        "gelu_python": "gelu",
        "gelu_python_tanh": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "gelu_tanh": "gelu_tanh",
        "quick_gelu": "quick_gelu",
        "relu": "relu",
        "relu2": "relu2",
        "silu": "silu",
        "swish": "silu",
        "xielu": "xielu",
    }
)


def activation_name(name: str) -> str:
    """Return quire's name of an activation: several names of Hugging Face mean the same function.

    Raises:
        UnsupportedModelError: quire does not have the activation.
    """
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"activation {name!r} is not supported; quire supports {', '.join(sorted(ACTIVATIONS))}"
        )
    return ACTIVATIONS[name]
