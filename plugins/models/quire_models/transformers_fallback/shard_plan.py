"""Plan of tensor parallelism: how each linear layer of a transformers model is sharded.

transformers gives some families a plan, from patterns of module paths to styles. A layer without a
style, and a family without a plan, is replicated: every rank computes it whole. Attention is shared
by heads in any case.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from quire_models.transformers_fallback.attention_calls import AttentionCall

COLWISE = ("colwise", "colwise_gather_output", "colwise_rep")
ROWWISE = ("rowwise", "rowwise_split_input", "rowwise_rep")


@dataclass(frozen=True, slots=True)
class ShardStyle:
    """Sharding of one linear layer.

    Attributes:
        dim: "outputs", "inputs", or "" if the layer is replicated.
        has_whole_side: Whether the side that is sharded is whole in the model around it: outputs
            are gathered, inputs are cut.
    """

    dim: str = ""
    has_whole_side: bool = False


REPLICATED = ShardStyle()
_STYLES = {
    **{name: ShardStyle("outputs", name != "colwise") for name in COLWISE},
    **{name: ShardStyle("inputs", name != "rowwise") for name in ROWWISE},
}


class ShardPlan:
    """The plan of one model.

    A module keeps its linear layers whole if it has a parameter of its own that transformers would
    shard, such as a bias for each head, or a norm with a row of weights for each head. So does an
    attention module of which the plan shards the outputs of no layer that computes queries.

    Args:
        model: Model with all its linear layers.
        calls: Calls of attention; quire's attention shards their sinks.
    """

    def __init__(self, model: PreTrainedModel, calls: Collection[AttentionCall] = ()) -> None:
        sinks = {call.sinks_path for call in calls}
        plan = dict(model.config.base_model_tp_plan or {})
        prefix = re.escape(model.base_model_prefix)
        self._patterns = [
            (re.compile(rf"{prefix}\.{_as_regex(pattern)}"), style)
            for pattern, style in plan.items()
        ]
        self._linears = dict(linear_modules(model))
        own = {
            path
            for path, _ in model.named_parameters()
            if self._planned(path) and path not in sinks
        }
        self._whole = {path.rpartition(".")[0] for path in own} - self._linears.keys()
        self._whole |= set(self._modules_with_rows_of_heads(model))
        self._whole |= {call.path for call in calls if self._has_whole_queries(call)}

    def style(self, path: str) -> ShardStyle:
        """Return how the linear layer at a path is sharded."""
        is_in_whole = path.rpartition(".")[0] in self._whole
        return REPLICATED if is_in_whole else self._planned(path) or REPLICATED

    def sharded_sizes(self) -> dict[str, int]:
        """Return the sizes that are divided, one for each pattern of layers, by their names."""
        sizes = {}
        for path, linear in self._linears.items():
            dim = self.style(path).dim
            if dim:
                sizes[f"{dim} of {general_path(path)}"] = features(linear)[dim == "outputs"]
        return sizes

    def _has_whole_queries(self, call: AttentionCall) -> bool:
        """Return whether all layers with the queries' number of outputs are replicated."""
        styles = [
            self._planned(path) or REPLICATED
            for path, linear in self._linears.items()
            if path.rpartition(".")[0] == call.path
            and features(linear)[1] == call.num_heads * call.key_dim
        ]
        return bool(styles) and all(style == REPLICATED for style in styles)

    def _modules_with_rows_of_heads(self, model: PreTrainedModel) -> Iterator[str]:
        """Yield the modules in which a norm has a weight `[heads, D]` for a layer's outputs."""
        outputs: dict[str, set[int]] = {}
        for path, linear in self._linears.items():
            outputs.setdefault(path.rpartition(".")[0], set()).add(features(linear)[1])
        for path, parameter in model.named_parameters():
            layer = path.rpartition(".")[0]
            module = layer.rpartition(".")[0]
            is_matrix = layer not in self._linears and parameter.dim() == 2
            if is_matrix and parameter.numel() in outputs.get(module, ()):
                yield module

    def _planned(self, path: str) -> ShardStyle | None:
        """Return the style of a module or parameter in transformers' plan."""
        for pattern, style in self._patterns:
            if pattern.fullmatch(path):
                return _STYLES.get(style)
        return None


def features(linear: nn.Linear | Conv1D) -> tuple[int, int]:
    """Return the numbers of inputs and of outputs of a linear layer."""
    if isinstance(linear, Conv1D):
        return linear.nx, linear.nf
    return linear.in_features, linear.out_features


def linear_modules(model: PreTrainedModel) -> Iterator[tuple[str, nn.Linear | Conv1D]]:
    """Yield the linear layers of a model by path, those of subclasses left out."""
    for path, module in model.named_modules():
        if type(module) in (nn.Linear, Conv1D):
            yield path, module


def general_path(path: str) -> str:
    """Return a path with `*` for numbers, which is the same for all layers."""
    return re.sub(r"\.\d+\.", ".*.", path)


def _as_regex(pattern: str) -> str:
    """Return a regular expression for a pattern whose `*` stands for one name of a path."""
    return re.escape(pattern).replace(r"\*", r"[^.]+")
