"""Forms of the experts in a transformers model that quire's layer can compute.

transformers stacks the matrices of all experts in one parameter, and chooses the function that
computes them by the config. The modules of that interface have attributes that tell the layout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quire.layers.activation import FUNCTIONS
from quire.layers.layer import Layer

LAYOUT = frozenset({"has_gate", "has_bias", "is_transposed", "is_concatenated"})
GATES = torch.linspace(-6.0, 6.0, 49)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsForm:
    """Form of one layer's experts.

    Attributes:
        path: Path of the experts' module in the model.
        width: Width of an expert.
        is_transposed: Whether matrices are stored as `[in, out]`.
        is_interleaved: Whether rows of the gate and of the up projection alternate.
        activate: Activation of transformers, with gate and up as they are stored.
        activation: Name of the same activation in quire; None: quire has no such activation.
    """

    path: str
    num_experts: int
    hidden_size: int
    width: int
    has_gate: bool
    has_bias: bool
    is_transposed: bool
    is_interleaved: bool
    activate: Callable[[Tensor], Tensor]
    activation: str | None

    @property
    def matrices(self) -> dict[str, tuple[str, ...]]:
        """Names of the stacked parameters, with the matrices of an expert in each."""
        first = {"gate_up_proj": ("gate_proj", "up_proj")} if self.has_gate else {}
        return {**(first or {"up_proj": ("up_proj",)}), "down_proj": ("down_proj",)}


class TransformersGate(Layer):
    """Gated activation that transformers computes.

    Args:
        form: Form of the experts.
    """

    def __init__(self, form: ExpertsForm) -> None:
        super().__init__()
        self.activate = form.activate
        self.is_interleaved = form.is_interleaved

    def forward(self, gate_up: Tensor) -> Tensor:
        """Return the activation, `[S, 2 * width] -> [S, width]`, with the gate first."""
        if self.is_interleaved:
            gate_up = torch.stack(gate_up.chunk(2, -1), -1).flatten(-2)
        return self.activate(gate_up)


def expert_forms(model: nn.Module) -> tuple[ExpertsForm, ...]:
    """Return the forms of a model's experts; those that quire's layer cannot compute are left out.

    The model is on the meta device.
    """
    found = (_form(path, module) for path, module in model.named_modules())
    return tuple(form for form in found if form is not None)


def _form(path: str, module: nn.Module) -> ExpertsForm | None:
    own = vars(module)
    if not own.keys() >= LAYOUT or own.get("has_post_expert_norm") or [*module.buffers()]:
        return None
    has_gate, has_bias, is_transposed = (
        own["has_gate"], own["has_bias"], own["is_transposed"]
    )  # fmt: skip
    first = "gate_up_proj" if has_gate else "up_proj"
    names = {first, "down_proj"} | ({f"{first}_bias", "down_proj_bias"} if has_bias else set())
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    if shapes.keys() != names:
        return None
    num_experts, width, hidden_size = _turned(shapes["down_proj"], not is_transposed)
    rows = 2 * width if has_gate else width
    if _turned(shapes[first], is_transposed) != (num_experts, rows, hidden_size):
        return None
    is_interleaved = has_gate and not own["is_concatenated"]
    activate = module._apply_gate if has_gate else module.act_fn
    return ExpertsForm(
        path=path,
        num_experts=num_experts,
        hidden_size=hidden_size,
        width=width,
        has_gate=has_gate,
        has_bias=has_bias,
        is_transposed=is_transposed,
        is_interleaved=is_interleaved,
        activate=activate,  # type: ignore[arg-type]
        activation=_quires_name(activate, has_gate, is_interleaved),  # type: ignore[arg-type]
    )


def _turned(shape: tuple[int, ...], is_turned: bool) -> tuple[int, int, int]:
    num_experts, rows, columns = shape
    return (num_experts, columns, rows) if is_turned else (num_experts, rows, columns)


def _quires_name(
    activate: Callable[[Tensor], Tensor], has_gate: bool, is_interleaved: bool
) -> str | None:
    """Return the name of the activation of quire that gives the same values; None: none does."""
    up = GATES.flip(0) if has_gate else torch.ones_like(GATES)
    given = torch.stack((GATES, up), -1) if is_interleaved else torch.stack((GATES, up))
    found = activate(given.flatten()[None] if has_gate else GATES[None].clone())[0]
    for name, function in FUNCTIONS.items():
        if torch.allclose(found, function(GATES.clone()) * up, rtol=1e-5, atol=1e-6):
            return name
    return None
