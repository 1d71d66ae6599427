"""The context that every layer of a model is built with, passed down as an argument."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from quire.interfaces.quantization import Quantization
from quire.layers.parallel import SingleDevice, TensorParallelGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerContext:
    """Settings that a model's layers are built with.

    Attributes:
        dtype: Dtype of weights and hidden states.
        device: Device of the weights.
        tp: Devices that each layer is sharded over.
        quantization: Quantization method of linear layers; None: no quantization.
        prepack: Whether weights are reordered after loading, for the CPU's matrix library.
        batch_invariant: Whether a row's bits must not depend on the rest of the batch.
        expert_parallel: Whether the experts of a mixture are divided over the devices, instead of
            each expert's width.
        layers: Decoder layers of this pipeline stage; None: all layers.
        kernels: Kernels that layers run: "torch" (operators), "triton" (`quire.kernels`) or
            "native" (`quire.native`).
    """

    dtype: torch.dtype
    device: torch.device
    tp: TensorParallelGroup = field(default_factory=SingleDevice)
    quantization: Quantization | None = None
    prepack: bool = False
    batch_invariant: bool = False
    expert_parallel: bool = False
    layers: range | None = None
    kernels: str = "torch"
