"""Options of a router: how it scores the experts, and which of them a token uses; needs no torch.

With scores over all experts, a token's experts are chosen and weighted as follows:

    scores -> + choice bias -> best groups -> best experts -> their scores -> / sum -> * scale

Routers that choose by logits (`top_k_softmax`, `top_k_sigmoid`) take the function of the chosen
logits only.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import UnsupportedModelError

SCORES = ("softmax", "sigmoid", "top_k_softmax", "top_k_sigmoid", "sparsemixer")
GROUP_SCORES = ("max", "top2")
MAX_EXPERTS = 16_384  # each is a module of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Options of a router.

    Attributes:
        num_experts: Number of experts.
        top_k: Number of experts of a token.
        score: Score of an expert: `softmax` or `sigmoid` over all logits; `top_k_softmax` or
            `top_k_sigmoid`: that function of the chosen logits alone; `sparsemixer`: see
            `sparsemixer_threshold`.
        has_bias: Whether the router's product has a bias.
        has_choice_bias: Whether a bias is added to the scores for the choice alone; the weights are
            those without it.
        choice_bias_dims: Dimensions of that bias in the checkpoint: 1 for `[E]`, 2 for `[1, E]`.
        num_groups: Number of groups of adjacent experts; 1: no groups.
        top_groups: Number of groups that a token's experts are chosen from.
        group_score: Score of a group: the largest of its experts' (`max`), or the sum of the two
            largest (`top2`).
        renormalize: Whether the weights are divided by their sum.
        sum_offset: Term added to that sum.
        min_sum: Smallest value of that sum.
        scale: Factor on the weights.
        has_expert_scale: Whether there is also a factor of each expert.
        input_norm_eps: Epsilon of a norm of the router's input without a weight, which is followed
            by a vector and the factor `hidden_size**-0.5`; None: no norm.
        scales_input: Whether the weights multiply the experts' inputs, not their outputs.
        sparsemixer_threshold: Largest relative distance from the best logit at which a logit counts
            in the softmax that gives the weight; the next expert is chosen in the same way among
            the others (Liu et al., GRIN: gradient-informed MoE, 2024).

    Raises:
        UnsupportedModelError: The options contradict each other.
    """

    num_experts: int
    top_k: int
    score: str = "softmax"
    has_bias: bool = False
    has_choice_bias: bool = False
    choice_bias_dims: int = 1
    num_groups: int = 1
    top_groups: int = 1
    group_score: str = "max"
    renormalize: bool = False
    sum_offset: float = 0.0
    min_sum: float = 0.0
    scale: float = 1.0
    has_expert_scale: bool = False
    input_norm_eps: float | None = None
    scales_input: bool = False
    sparsemixer_threshold: float = 0.0

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise UnsupportedModelError(
                f"the router's score {self.score!r} is not supported; it must be one of "
                f"{', '.join(SCORES)}"
            )
        if self.group_score not in GROUP_SCORES:
            raise UnsupportedModelError(
                f"the score of a group of experts {self.group_score!r} is not supported; it must "
                f"be one of {', '.join(GROUP_SCORES)}"
            )
        self._check_counts()

    def _check_counts(self) -> None:
        if self.num_experts > MAX_EXPERTS:
            raise UnsupportedModelError(
                f"the model has {self.num_experts} experts; quire supports {MAX_EXPERTS}"
            )
        if not 1 <= self.top_groups <= self.num_groups or self.num_experts % self.num_groups:
            raise UnsupportedModelError(
                f"{self.num_experts} experts cannot be divided into {self.num_groups} groups, of "
                f"which a token uses {self.top_groups}"
            )
        available = self.num_experts // self.num_groups * self.top_groups
        if not 1 <= self.top_k <= available:
            raise UnsupportedModelError(
                f"a token cannot use {self.top_k} experts, because it chooses from {available}"
            )
        if self.group_score == "top2" and self.num_groups == self.num_experts:
            raise UnsupportedModelError(
                f"{self.num_groups} groups of one expert each have no two best experts"
            )
        if self.num_groups > 1 and self.score not in ("softmax", "sigmoid"):
            raise UnsupportedModelError(f"a router with the score {self.score} has no groups")
