"""Options of a mixture of experts in place of an MLP; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from quire.layers.moe.routing import Routing
from quire_models.decoder.options.attention_config import NormConfig
from quire_models.decoder.options.mlp_config import MLPConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedGate:
    """Gated activation with clamped inputs (gpt-oss).

    Attributes:
        alpha: Slope of the sigmoid.
        limit: Largest gate, and largest magnitude of the up projection.
    """

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Options of a layer's mixture of experts.

    Attributes:
        routing: Options of the router.
        expert: Options of each expert.
        clamped_gate: Activation of the experts instead of theirs; None: theirs.
        shared: Options of an MLP for all tokens, whose output is added; None: there is none.
        has_shared_gate: Whether that output is multiplied by the sigmoid of a projection.
    """

    routing: Routing
    expert: MLPConfig
    clamped_gate: ClampedGate | None = None
    shared: MLPConfig | None = None
    has_shared_gate: bool = False

    @property
    def width(self) -> int:
        """Number of elements between the projections of an expert."""
        return self.expert.width

    def num_params(self, hidden_size: int) -> int:
        """Return the number of parameters."""
        routing = self.routing
        vectors = routing.has_bias + routing.has_choice_bias + routing.has_expert_scale
        router = routing.num_experts * (hidden_size + vectors)
        router += 0 if routing.input_norm_eps is None else hidden_size
        experts = routing.num_experts * self.expert.num_params(hidden_size)
        shared = 0 if self.shared is None else self.shared.num_params(hidden_size)
        return router + experts + shared + self.has_shared_gate * hidden_size


@dataclass(frozen=True, slots=True, kw_only=True)
class DualMLPConfig:
    """Options of an MLP and a mixture of experts side by side, with norms of their own (Gemma 4).

    The router and the experts take the residual, the latter after a norm.

    Attributes:
        mlp: Options of the MLP.
        moe: Options of the mixture.
        norm: Options of the norms of both outputs, and of the experts' input.
    """

    mlp: MLPConfig
    moe: MoEConfig
    norm: NormConfig

    def num_params(self, hidden_size: int) -> int:
        """Return the number of parameters."""
        norms = 3 * self.norm.num_params(hidden_size)
        return self.mlp.num_params(hidden_size) + self.moe.num_params(hidden_size) + norms
