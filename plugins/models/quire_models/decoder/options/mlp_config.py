"""Options of a decoder layer's MLP; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MLPConfig:
    """Options of a layer's MLP.

    Attributes:
        width: Number of elements between the projections.
        activation: Activation by its name in Hugging Face configs.
        is_gated: Whether the activation of a gate is multiplied with a second projection.
        has_bias: Whether all projections have biases.
    """

    width: int
    activation: str = "silu"
    is_gated: bool = True
    has_bias: bool = False

    def num_params(self, hidden_size: int) -> int:
        """Return the number of parameters."""
        inputs = 2 if self.is_gated else 1
        biases = self.has_bias * (inputs * self.width + hidden_size)
        learned = 4 if self.activation == "xielu" else 0
        return (inputs + 1) * self.width * hidden_size + biases + learned
