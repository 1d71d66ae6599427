"""Plan of loading: the targets of every tensor of a checkpoint, checked before any is read.

Names of the checkpoint become names of the model by the model's weight rules. All required tensors
must be there, in the right shape, and nothing else but layers that only predict draft tokens, and
copies of tied weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Tensors, Value
from quire.interfaces.model import Model
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.interfaces.weight_rules import WeightMatch, WeightPrefixes, WeightRule, WeightRules
from quire.worker.loading.checkpoint_words import CheckpointWords
from quire.worker.loading.contradictions import check_dtypes, check_names, check_shapes
from quire.worker.loading.draft_layers import DraftLayers
from quire.worker.loading.weight_targets import Target, optional_targets, weight_targets


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of the checkpoint with its targets.

    Attributes:
        tensor: The tensor.
        targets: Targets of its parts, in order; of a stack, index by index.
        rule: Rule that splits it; None: it is a single tensor of the model.
    """

    tensor: CheckpointTensor
    targets: tuple[Target, ...]
    rule: WeightRule | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape that the tensor must have in the checkpoint."""
        if self.rule is None:
            return self.targets[0].shape
        shape = self.rule.fused_shape(self._part_shapes(self.rule))
        num_entries = len(self.targets) // len(self.rule.parts)
        return shape if self.rule.stack is None else (num_entries, *shape)

    def load(self, value: Value) -> Iterator[Target]:
        """Load the parts of the tensor, and yield the target of each that is loaded."""
        for target, part in zip(self.targets, self._parts(value), strict=True):
            target.load(part)
            yield target

    def _parts(self, value: Value) -> Iterable[Tensor | QuantizedWeight]:
        rule = self.rule
        entries = _entries(value, rule is not None and rule.stack is not None)
        if rule is None:
            return entries
        shapes = self._part_shapes(rule)
        return (part for entry in entries for part in _split(rule, entry, shapes))

    def _part_shapes(self, rule: WeightRule) -> list[tuple[int, ...]]:
        return [target.shape for target in self.targets[: len(rule.parts)]]


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """What is loaded from a checkpoint.

    Attributes:
        tensors: Tensors to load.
        copies: Pairs of a tensor that is left out because the model ties it, and the tensor of the
            checkpoint that it must be equal to.
    """

    tensors: tuple[PlannedTensor, ...]
    copies: tuple[tuple[CheckpointTensor, CheckpointTensor], ...]


def plan_weights(
    model: Model,
    tensors: Tensors,
    config: Mapping[str, Any],
    words: CheckpointWords,
) -> WeightPlan:
    """Return the targets of each tensor that the model does not ignore.

    Args:
        model: Model to load.
        tensors: Tensors of the checkpoint, by name.
        config: The checkpoint's config.
        words: What errors call the parts of the checkpoint.

    Raises:
        CheckpointCorruptError: Tensors are missing, unexpected or of another shape, or two of them
            have the same target.
        PluginError: A weight rule cannot fuse the model's parts.
    """
    draft = _Draft(model, words)
    for name, model_name in _needed_names(model, tensors):
        draft.add(tensors[name], model_name)
    draft.resolve_tied()
    planned = tuple(draft.planned.values())
    check_dtypes((item.tensor for item in planned), config)
    check_shapes(((item.tensor, item.shape) for item in planned), config, words)
    _check_duplicates(planned)
    mtp = DraftLayers(config)
    unexpected = {name: why for name, why in draft.unexpected.items() if name not in mtp}
    unexpected = {words.tensor(name): why for name, why in unexpected.items()}
    prefixes = WeightPrefixes(model.weight_prefixes)
    missing = [prefixes.restored(name, tensors) for name in draft.missing_names()]
    missing = [name for name in missing if name not in unexpected]
    surplus = [name + why for name, why in unexpected.items()]
    check_names(missing, surplus, map(words.tensor, tensors), config, words)
    return WeightPlan(planned, tuple(draft.copies))


class _Draft:
    """A plan that is being made."""

    def __init__(self, model: Model, words: CheckpointWords) -> None:
        self._words = words
        self._required = weight_targets(model)
        self._targets = {**optional_targets(model), **self._required}
        self._rules = WeightRules(model.weight_rules)
        self._tied = model.tied_weights
        self._given: dict[str, CheckpointTensor] = {}  # unsplit ones, by the model's name
        self.planned: dict[str, PlannedTensor] = {}
        self.unexpected: dict[str, str] = {}  # name -> explanation
        self.copies: list[tuple[CheckpointTensor, CheckpointTensor]] = []

    def add(self, tensor: CheckpointTensor, model_name: str) -> None:
        """Plan one tensor."""
        match = self._rules.match(model_name)
        parts = [model_name] if match is None else _part_names(match, self._targets)
        if len(parts) == 1:
            self._given[parts[0]] = tensor
            if parts[0] in self._tied:
                return
        if unknown := [part for part in parts if part not in self._targets]:
            if tensor.is_optional:
                return
            explanation = "" if unknown == parts else f" (there is no {unknown[0]})"
            self.unexpected[tensor.name] = explanation
            return
        self._plan(tensor, parts, None if match is None else match.rule)

    def resolve_tied(self) -> None:
        """Plan a tied tensor if it stands for the one that it is tied to, else compare both."""
        for copy, original in self._tied.items():
            if copy in self._given and original in self._given:
                self.copies.append((self._given[copy], self._given[original]))
            elif copy in self._given and original in self._targets:
                self._plan(self._given[copy], [original], None)

    def missing_names(self) -> list[str]:
        """Return the checkpoint's names of tensors that are required and not planned."""
        planned = {target for item in self.planned.values() for target in item.targets}
        missing = (name for name, target in self._required.items() if target not in planned)
        names = (self._words.missing_tensor(name, self._rules) for name in missing)
        return list(dict.fromkeys(names))

    def _plan(self, tensor: CheckpointTensor, parts: list[str], rule: WeightRule | None) -> None:
        targets = tuple(self._targets[part] for part in parts)
        if rule is not None and tensor.is_quantized:
            rule = replace(rule, transposed=False, may_be_transposed=False)
        planned = PlannedTensor(tensor, targets, rule)
        if rule is not None and rule.may_be_transposed:
            other = replace(planned, rule=replace(rule, transposed=not rule.transposed))
            planned = other if tensor.shape == other.shape != planned.shape else planned
        self.planned[tensor.name] = planned


def _needed_names(model: Model, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor to load, and the name that the model gives it."""
    ignored = [re.compile(pattern) for pattern in model.ignored_weights]
    prefixes = WeightPrefixes(model.weight_prefixes)
    for name in names:
        if any(pattern.fullmatch(name) for pattern in ignored):
            continue
        model_name = model.map_weight_name(prefixes.replaced(name))
        if model_name is not None:
            yield name, model_name


def _part_names(match: WeightMatch, targets: Mapping[str, Target]) -> list[str]:
    """Return the names of a tensor's parts: of a stack, of all entries that the model has."""
    if match.rule.stack is None:
        return list(match.part_names())
    entries = (match.part_names(index) for index in count())
    known = takewhile(lambda names: any(name in targets for name in names), entries)
    return [name for names in known for name in names] or list(match.part_names())


def _entries(value: Value, is_stack: bool) -> Iterable[Tensor | QuantizedWeight]:
    """Return the weights of a stack, or the only one."""
    if isinstance(value, Tensor):
        return value.unbind(0) if is_stack else (value,)
    return (value,) if isinstance(value, QuantizedWeight) else value


def _split(
    rule: WeightRule, entry: Tensor | QuantizedWeight, shapes: Sequence[tuple[int, ...]]
) -> Sequence[Tensor | QuantizedWeight]:
    """Return the parts of one weight, given their shapes."""
    if isinstance(entry, Tensor):
        return rule.split(entry, shapes)
    if len(shapes) == 1:
        return (entry,)
    indices = rule.split_rows(torch.arange(entry.shape[0]), [shape[0] for shape in shapes])
    return [entry.rows(part) for part in indices]


def _check_duplicates(planned: Iterable[PlannedTensor]) -> None:
    names: dict[Target, str] = {}
    for item in planned:
        for target in item.targets:
            if target in names:
                raise CheckpointCorruptError(
                    f"tensors {names[target]} and {item.tensor.name} are both {target.parameter} "
                    "of one layer; remove one from the checkpoint"
                )
            names[target] = item.tensor.name
