"""Mixtures of experts for tests: random weights, a small model around one, and the formulas."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from model_parts import CONTEXT
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from quire.interfaces.model import ForwardBatch, Model
from quire.layers import Layer, LayerContext, MoE, Routing, SiluAndMul
from quire.worker.loading.weight_loading import load_weights, weight_targets

HIDDEN, WIDTH = 20, 12
STEP = ForwardBatch(attention=())


class MoEModel(Layer, Model):
    """A model whose only layer is a mixture of experts."""

    packed_modules: ClassVar = {"gate_up_proj": ("gate_proj", "up_proj")}

    def __init__(self, mlp: MoE) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("the tests call the layer")

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        raise NotImplementedError("the tests call the layer")


def make_moe(
    routing: Routing,
    context: LayerContext = CONTEXT,
    *,
    hidden: int = HIDDEN,
    width: int = WIDTH,
    activation: Layer | None = None,
    **options: Any,
) -> MoE:
    activation = activation or SiluAndMul(context)
    return MoE("mlp", hidden, width, routing, activation, context=context, **options)


def random_tensors(moe: MoE, seed: int = 0) -> dict[str, Tensor]:
    """Return random checkpoint tensors, by the model's names; biases and scales as well."""
    generator = torch.Generator().manual_seed(seed)
    targets = weight_targets(MoEModel(moe))
    return {
        name: torch.randn(target.shape, generator=generator) / max(target.shape[-1], 1) ** 0.5
        if "scale" not in name
        else torch.rand(target.shape, generator=generator) + 0.5
        for name, target in targets.items()
    }


def load(moe: MoE, tensors: Mapping[str, Tensor], folder: Path) -> MoE:
    """Load a checkpoint of these tensors."""
    folder.mkdir(exist_ok=True)
    save_file(
        {name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors"
    )
    load_weights(MoEModel(moe), folder)
    return moe


def hidden_states(count: int, hidden: int = HIDDEN, seed: int = 1) -> Tensor:
    return torch.randn(count, hidden, generator=torch.Generator().manual_seed(seed))


def by_formula(
    tensors: Mapping[str, Tensor],
    x: Tensor,  # [T, hidden]
    experts: Tensor,  # [T, k]
    weights: Tensor,  # [T, k]
) -> Tensor:  # [T, hidden]
    """Return the experts' weighted outputs with SwiGLU, token by token, in float64."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, (ids, factors) in enumerate(zip(experts.tolist(), weights.double(), strict=True)):
        for expert, factor in zip(ids, factors, strict=True):
            gate, up = (_linear(tensors, expert, part, x[token]) for part in ("gate", "up"))
            out[token] += factor * _linear(tensors, expert, "down", functional.silu(gate) * up)
    return out


def _linear(tensors: Mapping[str, Tensor], expert: int, part: str, x: Tensor) -> Tensor:
    name = f"mlp.experts.{expert}.{part}_proj"
    out = tensors[f"{name}.weight"].double() @ x.double()
    bias = tensors.get(f"{name}.bias")
    return out if bias is None else out + bias.double()
