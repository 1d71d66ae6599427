"""Inputs that each decoder layer has for itself: their table, and the gate at a layer's end.

Letters as in `quire.interfaces.attention`; P elements of a layer's input.
"""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.model import ForwardBatch
from quire.layers import (
    Layer,
    LayerContext,
    ReplicatedLinear,
    VocabParallelEmbedding,
    make_activation,
)
from quire_models.decoder.decoder_norms import make_norm
from quire_models.decoder.factors import rounded
from quire_models.decoder.options.layer_inputs_config import LayerInputsConfig


class LayerInputs(Layer):
    """The inputs of all layers, from token ids and their embeddings."""

    def __init__(
        self, config: LayerInputsConfig, hidden_size: int, num_layers: int, context: LayerContext
    ) -> None:
        super().__init__()
        width = num_layers * config.size
        self.shape = (num_layers, config.size)
        self.table_scale = rounded(config.size**0.5, context.dtype)
        self.projection_scale = hidden_size**-0.5
        self.table = VocabParallelEmbedding(config.vocab_size, width, context)
        self.projection = ReplicatedLinear(
            "model.layer_inputs.projection", hidden_size, width, bias=False, context=context
        )
        self.norm = make_norm(config.size, config.norm, context)

    def forward(
        self,
        input_ids: Tensor,  # [T]
        vectors: Tensor,  # [T, hidden], scaled embeddings
        batch: ForwardBatch,
    ) -> Tensor:  # [T, layers, P]
        """Return the input of each layer for each token."""
        rows = self.table(input_ids).mul_(self.table_scale).view(-1, *self.shape)
        projected = self.projection(vectors, batch.adapters).mul_(self.projection_scale)
        normed, _ = self.norm(projected.view(-1, self.shape[1]))
        summed: Tensor = normed.view(-1, *self.shape).add_(rows)
        return summed.mul_(0.5**0.5)


class LayerInputGate(Layer):
    """The use of a layer's input: it is gated by the hidden state, projected, normed and added."""

    def __init__(
        self, name: str, config: LayerInputsConfig, hidden_size: int, context: LayerContext
    ) -> None:
        super().__init__()
        self.gate = ReplicatedLinear(
            f"{name}.gate", hidden_size, config.size, bias=False, context=context
        )
        self.activation = make_activation(config.activation, is_gated=False, context=context)
        self.projection = ReplicatedLinear(
            f"{name}.projection", config.size, hidden_size, bias=False, context=context
        )
        self.norm = make_norm(hidden_size, config.norm, context)

    def forward(
        self,
        x: Tensor,  # [T, hidden]; overwritten
        layer_input: Tensor,  # [T, P]
        batch: ForwardBatch,
    ) -> Tensor:  # [T, hidden]
        """Return the hidden state with the layer's input added."""
        gated = self.activation(self.gate(x, batch.adapters)).mul_(layer_input)
        normed, _ = self.norm(self.projection(gated, batch.adapters))
        return x.add_(normed)
