"""Options of inputs that each decoder layer has for itself; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from quire_models.decoder.options.attention_config import NormConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputsConfig:
    """Options of the inputs of each layer for each token, from tables of their own (Gemma 4).

    The input of a layer is the mean of a token's row in a table, times the root of the row's size,
    and of a normed projection of its embedding, times the root of two. At the layer's end it is
    multiplied with the activation of a projection of the hidden state, and a normed projection of
    the product is added.

    Attributes:
        size: Elements of a layer's input.
        vocab_size: Number of rows of the table.
        activation: Activation by its name in Hugging Face configs.
        norm: Options of the norms.
    """

    size: int
    vocab_size: int
    activation: str
    norm: NormConfig

    def num_table_params(self, num_layers: int) -> int:
        """Return the number of parameters of the table, which has the rows of all layers."""
        return self.vocab_size * num_layers * self.size

    def num_params(self, hidden_size: int, num_layers: int) -> int:
        """Return the number of parameters, with those of each layer."""
        width = num_layers * self.size
        shared = width * hidden_size + self.norm.num_params(self.size)
        layer = 2 * self.size * hidden_size + self.norm.num_params(hidden_size)
        return self.num_table_params(num_layers) + shared + num_layers * layer
