"""Mixture of experts of a decoder layer, with experts that all tokens share."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.interfaces.model import ForwardBatch
from quire.layers import (
    ClampedSwiGLU,
    Experts,
    Layer,
    LayerContext,
    MoERouter,
    ReplicatedLinear,
    make_activation,
)
from quire_models.decoder.decoder_mlp import make_mlp
from quire_models.decoder.decoder_norms import make_norm
from quire_models.decoder.options.moe_config import DualMLPConfig, MoEConfig


class DecoderMoE(Layer):
    """Mixture of experts, and an MLP beside it that all tokens share."""

    def __init__(
        self, name: str, config: MoEConfig, hidden_size: int, context: LayerContext
    ) -> None:
        super().__init__()
        self.gate = MoERouter(f"{name}.gate", hidden_size, config.routing, context)
        self.experts = Experts(
            f"{name}.experts",
            config.routing.num_experts,
            hidden_size,
            config.width,
            _activation(config, context),
            has_gate=config.expert.is_gated,
            bias=config.expert.has_bias,
            scales_input=config.routing.scales_input,
            context=context,
        )
        self.shared_expert = (
            None
            if config.shared is None
            else make_mlp(f"{name}.shared_expert", config.shared, hidden_size, context)
        )
        self.shared_expert_gate = (
            ReplicatedLinear(
                f"{name}.shared_expert_gate", hidden_size, 1, bias=False, context=context
            )
            if config.has_shared_gate
            else None
        )

    def forward(self, x: Tensor, batch: ForwardBatch, router_input: Tensor | None = None) -> Tensor:
        """Transform each token separately: `[T, hidden] -> [T, hidden]`.

        Args:
            x: Inputs of the experts.
            batch: The step.
            router_input: Inputs of the router; None: `x`.
        """
        out: Tensor = self.experts(x, self.gate(x if router_input is None else router_input))
        if self.shared_expert is None:
            return out
        shared = self.shared_expert(x, batch)
        if self.shared_expert_gate is not None:
            gate = torch.sigmoid(self.shared_expert_gate(x, batch.adapters))  # [T, 1]
            shared = shared.mul_(gate)
        return out.add_(shared)


class DualMLP(Layer):
    """An MLP and a mixture of experts side by side, with norms of their own."""

    def __init__(
        self, name: str, config: DualMLPConfig, hidden_size: int, context: LayerContext
    ) -> None:
        super().__init__()
        self.dense = make_mlp(f"{name}.dense", config.mlp, hidden_size, context)
        self.moe = DecoderMoE(f"{name}.moe", config.moe, hidden_size, context)
        self.dense_norm = make_norm(hidden_size, config.norm, context)
        self.moe_input_norm = make_norm(hidden_size, config.norm, context)
        self.moe_norm = make_norm(hidden_size, config.norm, context)

    def forward(
        self,
        x: Tensor,  # [T, hidden], input of the MLP
        residual: Tensor,  # [T, hidden], of which the experts take the norm
        batch: ForwardBatch,
    ) -> Tensor:  # [T, hidden]
        """Return the sum of both normed outputs."""
        dense, _ = self.dense_norm(self.dense(x, batch))
        experts_input, _ = self.moe_input_norm(residual)
        mixed, _ = self.moe_norm(self.moe(experts_input, batch, residual))
        out: Tensor = dense.add_(mixed)
        return out


def _activation(config: MoEConfig, context: LayerContext) -> Layer:
    if config.clamped_gate is not None:
        return ClampedSwiGLU(config.clamped_gate.alpha, config.clamped_gate.limit, context)
    expert = config.expert
    return make_activation(expert.activation, is_gated=expert.is_gated, context=context)
