"""Router of a mixture of experts: which experts each token uses, and with which weights.

Everything is computed in float32, whatever the dtype of the hidden states: with fewer digits, close
scores become equal, and a token uses other experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen
from quire.layers.linear.linear_layers import Unquantized
from quire.layers.linear.row_tiles import InTiles
from quire.layers.moe.routing import SCORES, Routing
from quire.native.layer_kernels import cpu_moe


@dataclass(frozen=True, slots=True)
class Routed:
    """The experts of each token.

    Attributes:
        experts: Ids of the experts of each token, `[T, k]` int64, all different.
        weights: Factor of each of them, `[T, k]` float32.
    """

    experts: Tensor
    weights: Tensor


class MoERouter(Layer):
    """Router with the options of a `Routing`.

    The checkpoint has `weight` `[E, hidden]` and, by the options, `bias` `[E]`,
    `e_score_correction_bias` `[E]` (the bias of the choice), `per_expert_scale` `[E]` and `scale`
    `[hidden]` (of the normed input). All of them are kept in float32.

    Args:
        name: Module path in the model.
        hidden_size: Number of inputs.
        routing: Options.
        context: Settings to build the layer with.
    """

    weight: Tensor  # [E, hidden]
    bias: Tensor | None
    e_score_correction_bias: Tensor | None
    per_expert_scale: Tensor | None
    scale: Tensor | None  # [hidden]

    def __init__(
        self, name: str, hidden_size: int, routing: Routing, context: LayerContext
    ) -> None:
        super().__init__()
        self.routing = routing
        self.hidden_size = hidden_size
        plain = Unquantized(torch.float32, context.device)
        self.method = (
            InTiles(plain, name, torch.float32, context.device)
            if context.batch_invariant
            else plain
        )
        self.method.create_weights(self, routing.num_experts, hidden_size)
        sizes = {
            "bias": routing.num_experts if routing.has_bias else 0,
            "e_score_correction_bias": routing.num_experts if routing.has_choice_bias else 0,
            "per_expert_scale": routing.num_experts if routing.has_expert_scale else 0,
            "scale": 0 if routing.input_norm_eps is None else hidden_size,
        }
        for parameter, size in sizes.items():
            vector = frozen((size,), torch.float32, context.device) if size else None
            self.register_parameter(parameter, vector)
        self.kernel: cpu_moe.Route | None = None
        self.is_native = context.kernels == "native"

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return the parameter's shape; the bias of the choice may have a leading 1."""
        shape = super().checkpoint_shape(parameter, part)
        is_bias = parameter == "e_score_correction_bias"
        return (1,) * (self.routing.choice_bias_dims - 1) + shape if is_bias else shape

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy a tensor, which every device has whole."""
        super().load_weight(parameter, tensor.reshape(self.get_parameter(parameter).shape), part)

    def finish_loading(self) -> None:
        """Bind the native kernel, or find tiles for batch-invariant products."""
        if self.is_native:
            self.kernel = cpu_moe.Route(self._constants())
        else:
            self.method.finish_loading(self)

    def forward(self, x: Tensor) -> Routed:
        """Choose the experts of each token of `[T, hidden]`."""
        if self.kernel is not None:
            return Routed(*self.kernel(x))
        logits = self.method.apply(self, self._scaled_input(x.float()))
        if self.bias is not None:
            logits = logits.add_(self.bias)
        experts, weights = _CHOICES[self.routing.score](self, logits)
        if self.per_expert_scale is not None:
            weights = weights * self.per_expert_scale[experts]
        return Routed(experts, weights)

    def _constants(self) -> cpu_moe.RouterConstants:
        routing = self.routing
        return cpu_moe.RouterConstants(
            weight=self.weight,
            bias=self.bias,
            choice_bias=self.e_score_correction_bias,
            expert_scale=self.per_expert_scale,
            input_scale=self.scale,
            top_k=routing.top_k,
            score=SCORES.index(routing.score),
            groups=routing.num_groups,
            top_groups=routing.top_groups,
            sums_two_best=routing.group_score == "top2",
            renormalizes=routing.renormalize,
            sum_offset=routing.sum_offset,
            min_sum=routing.min_sum,
            scale=routing.scale,
            threshold=routing.sparsemixer_threshold,
            norm_eps=routing.input_norm_eps or 0.0,
        )

    def _scaled_input(self, x: Tensor) -> Tensor:  # [T, hidden], both
        if self.scale is None or self.routing.input_norm_eps is None:
            return x
        normed = functional.rms_norm(x, (self.hidden_size,), None, self.routing.input_norm_eps)
        return normed.mul_(self.scale).mul_(self.hidden_size**-0.5)

    def _by_softmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return self._by_scores(logits.softmax(-1))

    def _by_sigmoid(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return self._by_scores(_sigmoid(logits))

    def _by_scores(self, scores: Tensor) -> tuple[Tensor, Tensor]:  # [T, E] -> [T, k], both
        for_choice = scores
        if self.e_score_correction_bias is not None:
            for_choice = scores + self.e_score_correction_bias
        if self.routing.num_groups > self.routing.top_groups:
            for_choice = self._within_best_groups(for_choice)
        experts = for_choice.topk(self.routing.top_k, -1).indices
        return experts, self._weights(scores.gather(-1, experts))

    def _within_best_groups(self, scores: Tensor) -> Tensor:  # [T, E], both
        """Set the scores of experts in other groups to -inf."""
        size = self.routing.num_experts // self.routing.num_groups
        groups = scores.view(-1, self.routing.num_groups, size)  # [T, groups, E / groups]
        if self.routing.group_score == "max":
            group_scores = groups.amax(-1)
        else:
            group_scores = groups.topk(2, -1).values.sum(-1)
        best: Tensor = group_scores.topk(self.routing.top_groups, -1).indices
        is_other = torch.ones_like(group_scores, dtype=torch.bool).scatter_(-1, best, value=False)
        return groups.masked_fill(is_other.unsqueeze(-1), -torch.inf).flatten(-2)

    def _weights(self, scores: Tensor) -> Tensor:  # [T, k], both
        routing = self.routing
        if routing.renormalize:
            total = scores.sum(-1, keepdim=True).add_(routing.sum_offset)
            scores = scores / total.clamp_(min=routing.min_sum)
        return scores * routing.scale

    def _by_top_softmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        top = logits.topk(self.routing.top_k, -1)
        return top.indices, top.values.softmax(-1)

    def _by_top_sigmoid(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        top = logits.topk(self.routing.top_k, -1)
        return top.indices, _sigmoid(top.values)

    def _by_sparsemixer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        remaining, experts, weights = logits, [], []
        for _ in range(self.routing.top_k):
            best, chosen = remaining.max(-1, keepdim=True)
            distance = (best - logits) / torch.maximum(logits.abs(), best)
            is_far = distance > self.routing.sparsemixer_threshold
            shares = remaining.masked_fill(is_far, -torch.inf).softmax(-1)
            experts.append(chosen)
            weights.append(shares.gather(-1, chosen))
            remaining = remaining.scatter(-1, chosen, -torch.inf)
        return torch.cat(experts, -1), torch.cat(weights, -1)


_CHOICES: dict[str, Callable[[MoERouter, Tensor], tuple[Tensor, Tensor]]] = {
    "softmax": MoERouter._by_softmax,
    "sigmoid": MoERouter._by_sigmoid,
    "top_k_softmax": MoERouter._by_top_softmax,
    "top_k_sigmoid": MoERouter._by_top_sigmoid,
    "sparsemixer": MoERouter._by_sparsemixer,
}


def _sigmoid(x: Tensor) -> Tensor:
    """Return the sigmoid by operations that are the same for each element of any batch."""
    return x.neg().exp_().add_(1).reciprocal_()
