"""The layout of GGUF files: llama.cpp's names, stacked experts, and for some another order of rows.

For Llama and its like, rows of queries and keys are in the order of rotary pairs, as in Mistral's
own layout; the files of other architectures have the order of Hugging Face. Weights of norms that
are around one are stored so; the layout of Hugging Face has their difference from one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quire.compose.gguf.families import BY_ARCHITECTURE
from quire.compose.gguf.family import EXPERT_COUNT
from quire.compose.gguf.model_config import EMBEDDING
from quire.compose.gguf.rope_values import FACTOR_TENSORS
from quire.compose.gguf.tensor_names import (
    KEY_PARTS,
    KEYS,
    KEYS_AND_VALUES,
    QUERIES,
    TENSORS,
    VALUE_PARTS,
)
from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Tensors
from quire.interfaces.weight_rules import WeightMatch, WeightRule, WeightRules
from quire.worker.loading.formats.consolidated import halves_from_pairs

NORMS = "norm.weight"  # end of their names
SINGLE_ROWS = (  # ends of names of matrices of one row, which are vectors in the file
    ".mlp.shared_expert_gate.weight", ".mlp.moe_statics.e_score_correction_bias",
)  # fmt: skip


def is_gguf_layout(tensors: Tensors) -> bool:
    """Return whether tensors have llama.cpp's names."""
    return EMBEDDING in tensors


def gguf_rules(config: Mapping[str, Any]) -> WeightRules:
    """Return the rules from llama.cpp's names to those of the layout of Hugging Face."""
    own = BY_ARCHITECTURE[config["architectures"][0]].tensors
    names = {**own, **{theirs: ours for theirs, ours in TENSORS.items() if theirs not in own}}
    return WeightRules(
        WeightRule(theirs, (ours,) if isinstance(ours, str) else ours)
        for theirs, ours in names.items()
    )


def from_gguf(tensors: Tensors, config: Mapping[str, Any]) -> dict[str, CheckpointTensor]:
    """Return the tensors of GGUF files as in the layout of Hugging Face.

    Matrices in blocks are rows of bytes, whose order changes as that of numbers does. A stack of
    the experts' matrices becomes one tensor for each. Factors of the rotary embedding are left out:
    they are in the config. Tensors without a known name keep theirs, so that errors list them.

    Args:
        tensors: Tensors of the files.
        config: Config of the model, in the layout of Hugging Face.

    Raises:
        CheckpointCorruptError: The rows of a query or key projection are not whole heads, a stack
            is not of as many matrices as there are experts, or two tensors mean the same.
    """
    layout, rules = _Layout(config), gguf_rules(config)
    converted = layout.keys_and_values(tensors)
    taken = {stored.name for tensor in converted.values() for stored in tensor.stored}
    for name, tensor in tensors.items():
        if name in FACTOR_TENSORS or name in taken:
            continue
        match = rules.match(name)
        for new in [tensor] if match is None else layout.converted(tensor, match):
            if new.name in converted:
                raise CheckpointCorruptError(
                    f"tensors {converted[new.name].stored[0].name} and {name} in "
                    f"{new.stored[0].file.name} mean the same; convert the model again"
                )
            converted[new.name] = new
    return converted


class _Layout:
    """Order of rows, offsets and stacks in the files of one model.

    Args:
        config: Config of the model, in the layout of Hugging Face.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._family = BY_ARCHITECTURE[config["architectures"][0]]
        self._head_dim = config["head_dim"]
        experts = self._family.keys.get(EXPERT_COUNT)
        self._num_experts: Any = None if experts is None else config.get(experts.name)
        self._num_heads = config["num_attention_heads"]
        self._num_layers = config["num_hidden_layers"]

    def keys_and_values(self, tensors: Tensors) -> dict[str, CheckpointTensor]:
        """Return the matrices of latent attention that files have in two parts."""
        found: dict[str, CheckpointTensor] = {}
        for layer in range(self._num_layers if self._family.is_latent else 0):
            name = f"{KEYS_AND_VALUES}.weight".format(layer=layer)
            parts = [tensors.get(part.format(layer=layer)) for part in (KEY_PARTS, VALUE_PARTS)]
            keys, values = parts
            if keys is None or values is None:
                continue
            if not len(keys.shape) == len(values.shape) == 3 or (
                (keys.shape[0], keys.shape[1]) != (values.shape[0], values.shape[2])
            ):
                raise CheckpointCorruptError(
                    f"tensors {keys.name} and {values.name} in {keys.stored[0].file.name} have "
                    f"shapes {list(keys.shape)} and {list(values.shape)}; the first must be "
                    "[heads, rank, size], the second [heads, size, rank]; convert the model again"
                )
            num_rows = keys.shape[0] * (keys.shape[2] + values.shape[1])
            stored = (*keys.stored, *values.stored)
            found[name] = CheckpointTensor(name, (num_rows, keys.shape[1]), stored, _joined)
        return found

    def converted(self, tensor: CheckpointTensor, match: WeightMatch) -> Iterator[CheckpointTensor]:
        """Yield a tensor under its new name, or the entries of a stack."""
        name = match.part_names()[0]
        if match.rule.stack is not None:
            yield from self._unstacked(tensor, match)
        elif self._family.is_paired and match.rule.checkpoint in (QUERIES, KEYS):
            yield CheckpointTensor(name, tensor.shape, tensor.stored, self._reordering(tensor))
        elif self._family.norm_offset and tensor.name.endswith(NORMS):
            shifted = partial(_less, offset=self._family.norm_offset)
            yield CheckpointTensor(name, tensor.shape, tensor.stored, shifted)
        elif name.endswith(SINGLE_ROWS) and len(tensor.shape) == 1:
            as_row = partial(torch.unsqueeze, dim=0)
            yield CheckpointTensor(name, (1, *tensor.shape), tensor.stored, as_row)
        else:
            yield CheckpointTensor(name, tensor.shape, tensor.stored)

    def _reordering(self, tensor: CheckpointTensor) -> Callable[[Tensor], Tensor]:
        """Return the function that turns rotary pairs of rows into halves of heads."""
        if tensor.shape[0] % self._head_dim:
            raise CheckpointCorruptError(
                f"tensor {tensor.name} in {tensor.stored[0].file.name} has shape "
                f"{list(tensor.shape)}, whose rows are no whole heads of {self._head_dim}; "
                "convert the model again"
            )
        return partial(halves_from_pairs, head_dim=self._head_dim)

    def _unstacked(
        self, tensor: CheckpointTensor, match: WeightMatch
    ) -> Iterator[CheckpointTensor]:
        """Yield the entries of a stack: matrices or biases of experts, or norms of heads."""
        (stored,), (count, *rest) = tensor.stored, tensor.shape
        is_experts = match.rule.stack == "expert"
        if is_experts and self._num_experts is None:
            yield tensor  # to be listed as one that the model does not have
            return
        most: int = self._num_experts if is_experts else self._num_heads
        if not rest or count > most or (is_experts and count < most):
            what = f"{most} experts" if is_experts else f"at most {most} heads"
            raise CheckpointCorruptError(
                f"tensor {tensor.name} in {stored.file.name} has shape {list(tensor.shape)}, and "
                f"must be a stack of {what}; convert the model again"
            )
        num_parts = len(match.rule.parts)  # in the rows of each entry
        num_rows = rest[0] // num_parts
        entry = replace(stored, shape=tuple(rest), num_bytes=stored.num_bytes // count // num_parts)
        for index in range(count):
            for part, name in enumerate(match.part_names(index)):
                rows = partial(_rows, start=part * num_rows, stop=(part + 1) * num_rows)
                yield CheckpointTensor(
                    name,
                    (num_rows, *rest[1:]),
                    (replace(entry, index=index),),
                    rows if num_parts > 1 else None,
                )


def _joined(
    keys: Tensor,  # [H, rank, D]
    values: Tensor,  # [H, D, rank]
) -> Tensor:  # [H * (key D + value D), rank]
    """Return the rows of each head's keys, followed by those of its values."""
    return torch.cat((keys.transpose(1, 2), values), 1).flatten(0, 1)


def _rows(entry: Tensor, start: int, stop: int) -> Tensor:
    return entry[start:stop]


def _less(weight: Tensor, offset: float) -> Tensor:
    return weight.float() - offset
