"""Mixture of experts of a decoder layer, alone or beside an MLP."""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.model import ForwardBatch
from quire.layers import ClampedSwiGLU, Layer, LayerContext, MoE, make_activation
from quire_models.decoder.decoder_mlp import make_mlp
from quire_models.decoder.decoder_norms import make_norm
from quire_models.decoder.options.moe_config import DualMLPConfig, MoEConfig


class DualMLP(Layer):
    """An MLP and a mixture of experts side by side, with norms of their own."""

    def __init__(
        self, name: str, config: DualMLPConfig, hidden_size: int, context: LayerContext
    ) -> None:
        super().__init__()
        self.dense = make_mlp(f"{name}.dense", config.mlp, hidden_size, context)
        self.moe = make_moe(f"{name}.moe", config.moe, hidden_size, context)
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


def make_moe(name: str, config: MoEConfig, hidden_size: int, context: LayerContext) -> MoE:
    """Return a mixture of experts by its options."""
    return MoE(
        name,
        hidden_size,
        config.width,
        config.routing,
        _activation(config, context),
        has_gate=config.expert.is_gated,
        bias=config.expert.has_bias,
        shared_expert=None
        if config.shared is None
        else make_mlp(f"{name}.shared_expert", config.shared, hidden_size, context),
        has_shared_gate=config.has_shared_gate,
        context=context,
    )


def _activation(config: MoEConfig, context: LayerContext) -> Layer:
    if config.clamped_gate is not None:
        return ClampedSwiGLU(config.clamped_gate.alpha, config.clamped_gate.limit, context)
    expert = config.expert
    return make_activation(expert.activation, is_gated=expert.is_gated, context=context)
