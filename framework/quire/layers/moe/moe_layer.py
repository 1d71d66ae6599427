"""Mixture of experts in place of an MLP: a router, and the experts that it chooses."""

from __future__ import annotations

from torch import Tensor

from quire.layers.context import LayerContext
from quire.layers.layer import Layer
from quire.layers.moe.experts import Experts
from quire.layers.moe.router import MoERouter
from quire.layers.moe.routing import Routing


class MoE(Layer):
    """Mixture of experts (Shazeer et al., 2017), without experts that all tokens share.

    The checkpoint's tensors are those of the router, `{name}.gate`, and those of `Experts`,
    `{name}.experts`.

    Args:
        name: Module path in the model.
        hidden_size: Number of inputs and outputs.
        intermediate_size: Width of an expert.
        routing: Options of the router.
        activation: Activation of the experts, as for `Experts`.
        has_gate: Whether experts have a gate.
        bias: Whether the projections of experts have biases.
        context: Settings to build the layer with.
    """

    def __init__(
        self,
        name: str,
        hidden_size: int,
        intermediate_size: int,
        routing: Routing,
        activation: Layer,
        *,
        has_gate: bool = True,
        bias: bool = False,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self.gate = MoERouter(f"{name}.gate", hidden_size, routing, context)
        self.experts = Experts(
            f"{name}.experts",
            routing.num_experts,
            hidden_size,
            intermediate_size,
            activation,
            has_gate=has_gate,
            bias=bias,
            scales_input=routing.scales_input,
            context=context,
        )

    def forward(self, x: Tensor, router_input: Tensor | None = None) -> Tensor:
        """Transform each token by its experts: `[T, hidden] -> [T, hidden]`.

        Args:
            x: Inputs of the experts.
            router_input: Inputs of the router; None: `x`.
        """
        routed = self.gate(x if router_input is None else router_input)
        out: Tensor = self.experts(x, routed)
        return out
