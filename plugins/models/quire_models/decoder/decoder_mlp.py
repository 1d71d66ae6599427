"""MLPs of a decoder layer: gated and plain."""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.model import ForwardBatch
from quire.layers import (
    ColumnParallelLinear,
    Layer,
    LayerContext,
    MergedColumnParallelLinear,
    RowParallelLinear,
    make_activation,
)
from quire_models.decoder.options.mlp_config import MLPConfig


class GatedMLP(Layer):
    """MLP whose activation of a gate is multiplied with a second projection (Shazeer, 2020)."""

    def __init__(
        self, name: str, config: MLPConfig, hidden_size: int, context: LayerContext
    ) -> None:
        super().__init__()
        parts = {"gate_proj": config.width, "up_proj": config.width}
        self.gate_up_proj = MergedColumnParallelLinear(
            f"{name}.gate_up_proj", hidden_size, parts, bias=config.has_bias, context=context
        )
        self.activation = make_activation(config.activation, is_gated=True, context=context)
        self.down_proj = RowParallelLinear(
            f"{name}.down_proj", config.width, hidden_size, bias=config.has_bias, context=context
        )

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Transform each token separately: `[T, hidden] -> [T, hidden]`."""
        gate_up = self.gate_up_proj(x, batch.adapters)
        out: Tensor = self.down_proj(self.activation(gate_up), batch.adapters)
        return out


class PlainMLP(Layer):
    """MLP with an activation between two projections."""

    def __init__(
        self, name: str, config: MLPConfig, hidden_size: int, context: LayerContext
    ) -> None:
        super().__init__()
        bias, width = config.has_bias, config.width
        self.up_proj = ColumnParallelLinear(
            f"{name}.up_proj", hidden_size, width, bias=bias, context=context
        )
        self.activation = make_activation(config.activation, is_gated=False, context=context)
        self.down_proj = RowParallelLinear(
            f"{name}.down_proj", width, hidden_size, bias=bias, context=context
        )

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Transform each token separately: `[T, hidden] -> [T, hidden]`."""
        up = self.up_proj(x, batch.adapters)
        out: Tensor = self.down_proj(self.activation(up), batch.adapters)
        return out


def make_mlp(
    name: str, config: MLPConfig, hidden_size: int, context: LayerContext
) -> GatedMLP | PlainMLP:
    """Return an MLP by its options."""
    kind = GatedMLP if config.is_gated else PlainMLP
    return kind(name, config, hidden_size, context)
