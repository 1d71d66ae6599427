"""What every layer of a model must know to build itself, passed from the top, never looked up."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from quire.interfaces.quantization import Quantization
from quire.layers.parallel import SingleDevice, TensorParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """Where and how a model's layers are built.

    Attributes:
        dtype: Of weights and hidden states.
        device: Where weights lie.
        tp: The devices that share each layer.
        quantization: How linear layers keep their weights; None: as they are.
        batch_invariant: Whether a row's bits must not depend on the rest of the batch.
        prepack: Whether weights are reordered after loading, for the CPU's matrix library.
        layers: The decoder layers of this pipeline stage; None: all of them.
        kernels: What layers run: "torch" operators, or the "triton" or "native" kernels of
            `quire.kernels`.
    """

    dtype: torch.dtype
    device: torch.device
    tp: TensorParallelGroup = field(default_factory=SingleDevice)
    quantization: Quantization | None = None
    prepack: bool = False
    batch_invariant: bool = False
    layers: range | None = None
    kernels: str = "torch"
