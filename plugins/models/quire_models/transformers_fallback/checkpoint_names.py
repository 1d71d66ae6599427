"""Names of a checkpoint's tensors, as transformers converts them while it loads.

A family may rename modules, and stack the matrices of its experts in one parameter. Here a stack
gets a module for each matrix in it, under the name of the checkpoint and with a view of the stack
as its weight. So the loader copies each tensor of the checkpoint to its place, and nothing is
stacked afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
)

from quire.errors import UnsupportedModelError

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
    """

    def __init__(self, model: PreTrainedModel) -> None:
        transforms = get_model_conversion_mapping(model)
        tensors = model.state_dict()
        self.stacks = tuple(_stacks(model, transforms))
        self._renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
        self._known = set(tensors)
        for stack in self.stacks:
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


def check_conversions(model: PreTrainedModel) -> None:
    """Check that the checkpoint's tensors are those of the model, apart from stacked experts.

    Raises:
        UnsupportedModelError: transformers changes them while it loads.
    """
    list(_stacks(model, get_model_conversion_mapping(model)))


def unstack(model: nn.Module, stack: ExpertStack) -> None:
    """Replace a stacked parameter by modules with views of it; the model reads it as before."""
    owner_path, _, name = stack.path.rpartition(".")
    owner = model.get_submodule(owner_path)
    tensor = owner.get_parameter(name).data  # [E, rows, columns]
    del owner._parameters[name]
    vars(owner)[name] = tensor
    for expert, matrix in enumerate(tensor):
        views = matrix.chunk(len(stack.sources))
        for source, view in zip(stack.sources, views, strict=True):
            _put(model, source.replace("*", str(expert)), nn.Parameter(view, requires_grad=False))


def _stacks(model: PreTrainedModel, transforms: Iterable[object]) -> Iterator[ExpertStack]:
    names = list(model.state_dict())
    for transform in transforms:
        if not isinstance(transform, WeightConverter):
            continue
        targets = [_plain(pattern) for pattern in transform.target_patterns]
        matched = [name for name in names if any(target in name for target in targets)]
        if not matched:
            continue
        if not _is_stacking(transform.operations) or len(targets) != 1:
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


def _put(model: nn.Module, path: str, parameter: nn.Parameter) -> None:
    """Set a parameter at a path, with the modules that are missing on the way."""
    *owners, name = path.split(".")
    module = model
    for owner in owners:
        if owner not in module._modules:
            module.add_module(owner, nn.Module())
        module = module.get_submodule(owner)
    module.register_parameter(name, parameter)
