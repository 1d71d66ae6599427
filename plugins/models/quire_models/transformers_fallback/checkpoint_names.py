"""Names of a checkpoint's tensors, as transformers converts them while it loads.

A family may rename modules, and stack the matrices of its experts in one parameter. quire's experts
have a matrix each. So there are weight rules from the checkpoint's matrices, and from stacks, which
a checkpoint may have as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
)

from quire.errors import UnsupportedModelError
from quire.interfaces.weight_rules import WeightRule
from quire_models.transformers_fallback.expert_forms import ExpertsForm

ALWAYS_IGNORED = {r"rotary_emb\.inv_freq", r"(^|\.)position_ids$"}  # of older versions


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """A parameter that stacks matrices of all experts.

    Attributes:
        path: Path of the parameter.
        sources: Paths of the matrices in one expert, in order, with `*` for its number.
    """

    path: str
    sources: tuple[str, ...]

    def names(self, num_experts: int) -> Iterator[str]:
        """Yield the paths of the matrices of all experts."""
        for expert in range(num_experts):
            yield from (source.replace("*", str(expert)) for source in self.sources)


class CheckpointNames:
    """Names of the model's tensors for the names of a checkpoint.

    Args:
        model: Model as transformers builds it, before its layers are replaced.
        experts: Experts that quire computes.

    Attributes:
        rules: Rules for the weights of experts.

    Raises:
        UnsupportedModelError: transformers changes other tensors while it loads them.
    """

    def __init__(self, model: PreTrainedModel, experts: Iterable[ExpertsForm]) -> None:
        transforms = get_model_conversion_mapping(model)
        tensors = model.state_dict()
        forms = tuple(experts)
        stacks = {stack.path: stack for stack in _stacks(model, transforms, forms)}
        self.rules = tuple(rule for form in forms for rule in _rules(form, stacks))
        self._renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self._known = set(tensors)
        for stack in stacks.values():
            self._known.update(stack.names(tensors[stack.path].shape[0]))
        self._prefix = f"{model.base_model_prefix}."
        unexpected = set(model._keys_to_ignore_on_load_unexpected or ()) | ALWAYS_IGNORED
        self._ignored = re.compile("|".join(f"(?:{pattern})" for pattern in sorted(unexpected)))

    def model_name(self, name: str) -> str | None:
        """Return the model's name of a tensor of the checkpoint.

        None: the model does not have it, and transformers ignores it as well.
        """
        for renaming in self._renamings:
            name, _ = renaming.rename_source_key(name)
        if name in self._known:
            return name
        if self._prefix + name in self._known:  # a checkpoint of the body alone
            return self._prefix + name
        return None if self._ignored.search(name) else name


def _rules(form: ExpertsForm, stacks: Mapping[str, ExpertStack]) -> Iterator[WeightRule]:
    """Yield the rules for one layer's experts; those of the usual checkpoints are first."""
    for stacked, matrices in form.matrices.items():
        name = f"{form.path}.{stacked}"
        weights, biases = (
            tuple(f"{form.path}.{{expert}}.{matrix}.{parameter}" for matrix in matrices)
            for parameter in ("weight", "bias")
        )
        sources = stacks[name].sources if name in stacks else ()
        for source, weight in zip(sources, weights, strict=bool(sources)):
            given = source.replace("*", "{expert}")
            if given != weight:
                yield WeightRule(given, (weight,))
        groups = form.width if form.is_interleaved and len(matrices) > 1 else 1
        yield WeightRule(name, weights, groups, form.is_transposed)
        if form.has_bias:
            yield WeightRule(f"{name}_bias", biases, groups)


def _stacks(
    model: PreTrainedModel, transforms: Iterable[object], experts: Iterable[ExpertsForm]
) -> Iterator[ExpertStack]:
    names = list(model.state_dict())
    known = {f"{form.path}.{stacked}" for form in experts for stacked in form.matrices}
    for transform in transforms:
        if not isinstance(transform, WeightConverter):
            continue
        targets = [_plain(pattern) for pattern in transform.target_patterns]
        matched = [name for name in names if any(target in name for target in targets)]
        if not matched:
            continue
        is_stacking = _is_stacking(transform.operations) and len(targets) == 1
        if not is_stacking or not known.issuperset(matched):
            operations = ", ".join(type(each).__name__ for each in transform.operations)
            raise UnsupportedModelError(
                f"transformers changes its tensors {targets[0]} while it loads ({operations})"
            )
        sources = [_plain(pattern) for pattern in transform.source_patterns]
        for name in matched:
            yield ExpertStack(name, tuple(name.replace(targets[0], source) for source in sources))


def _is_stacking(operations: Sequence[object]) -> bool:
    """Return whether operations stack experts, after joining the rows of one expert's matrices."""
    stack, *join = operations
    is_stack = isinstance(stack, MergeModulelist) and stack.dim == 0
    is_join = not join or (len(join) == 1 and isinstance(join[0], Concatenate) and join[0].dim == 1)
    return is_stack and is_join


def _plain(pattern: str) -> str:
    r"""Return a pattern of transformers without the backslashes before its dots."""
    return pattern.replace("\\", "")
