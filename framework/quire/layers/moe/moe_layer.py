"""Mixture of experts in place of an MLP: a router, experts that it chooses, and a shared one."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.interfaces.model import ForwardBatch
from quire.layers.context import LayerContext
from quire.layers.layer import Layer
from quire.layers.linear.linear_layers import ReplicatedLinear
from quire.layers.moe.experts import Experts
from quire.layers.moe.router import MoERouter
from quire.layers.moe.routing import Routing


class MoE(Layer):
    """Mixture of experts (Shazeer et al., 2017), with an MLP for all tokens if there is one.

    The checkpoint's tensors are those of the router, `{name}.gate`, those of `Experts`,
    `{name}.experts`, those of the shared expert, `{name}.shared_expert`, and of its gate,
    `{name}.shared_expert_gate`.

    Args:
        name: Module path in the model.
        hidden_size: Number of inputs and outputs.
        intermediate_size: Width of an expert.
        routing: Options of the router.
        activation: Activation of the experts, as for `Experts`.
        has_gate: Whether experts have a gate.
        bias: Whether the projections of experts have biases.
        shared_expert: MLP for all tokens, `(x, batch) -> [T, hidden]`, whose output is added; None:
            there is none.
        has_shared_gate: Whether that output is multiplied by the sigmoid of a projection.
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
        shared_expert: Layer | None = None,
        has_shared_gate: bool = False,
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
        self.shared_expert = shared_expert
        self.shared_expert_gate = (
            ReplicatedLinear(
                f"{name}.shared_expert_gate", hidden_size, 1, bias=False, context=context
            )
            if has_shared_gate
            else None
        )

    def forward(self, x: Tensor, batch: ForwardBatch, router_input: Tensor | None = None) -> Tensor:
        """Transform each token separately: `[T, hidden] -> [T, hidden]`.

        Args:
            x: Inputs of the experts.
            batch: The step.
            router_input: Inputs of the router, `[T, hidden]`; None: `x`.
        """
        routed = self.gate(x if router_input is None else router_input)
        out: Tensor = self.experts(x, routed)
        if self.shared_expert is None:
            return out
        shared = self.shared_expert(x, batch)
        if self.shared_expert_gate is not None:
            gate = torch.sigmoid(self.shared_expert_gate(x, batch.adapters))  # [T, 1]
            shared = shared.mul_(gate)
        return out.add_(shared)
