"""Weight rules: names of a checkpoint's modules, and the model's modules that their tensors hold.

A model without rules has the checkpoint's names. A rule renames a module, splits a fused one into
its parts (`c_attn` into q, k and v), or maps a stack of experts on one module for each. Weights and
LoRA adapters follow the same rules, and errors about either name the checkpoint's modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from quire.errors import PluginError

if TYPE_CHECKING:
    from torch import Tensor

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightRule:
    """Rule for one module of the checkpoint, or for one tensor that is named whole.

    Names are module paths, whose tensors have any suffix (`.weight`, `.bias`), or whole names of
    tensors. Placeholders such as `{layer}` and `{expert}` stand for numbers between dots. If the
    parts have a placeholder that the checkpoint's name lacks, the first dimension of the tensor
    counts it.

    Attributes:
        checkpoint: Name in the checkpoint: `transformer.h.{layer}.attn.c_attn`.
        parts: Names in the model, in the order of their rows in the tensor. A part may be a matrix
            of a merged layer: `model.layers.{layer}.self_attn.q_proj`.
        groups: Number of groups of rows. Each group has equally many rows of each part, one part
            after the other: 1 if every part is contiguous, the number of heads if each head has its
            query, key and value, half the number of rows if two parts alternate row by row.
        transposed: Whether matrices are stored as `[in, out]`.
        may_be_transposed: Whether some checkpoints store them so, which the shape tells.
    """

    checkpoint: str
    parts: tuple[str, ...]
    groups: int = 1
    transposed: bool = False
    may_be_transposed: bool = False

    def __post_init__(self) -> None:
        self._check_names()
        if self.groups < 1:
            raise PluginError(f"the weight rule for {self.checkpoint} has {self.groups} groups")

    @property
    def stack(self) -> str | None:
        """Placeholder that the tensor's first dimension counts; None if it counts none."""
        return next(iter(_placeholders(self.parts[0]) - _placeholders(self.checkpoint)), None)

    def fused_shape(self, parts: Sequence[Shape]) -> Shape:
        """Return the checkpoint's shape of a tensor, from those of its parts, without a stack.

        Raises:
            PluginError: Parts of these shapes cannot be fused by the rule.
        """
        if len(parts) == 1:
            return parts[0][::-1] if self._is_transposed(len(parts[0])) else parts[0]
        columns = {shape[1:] for shape in parts}
        if len(columns) > 1 or not all(shape and shape[0] % self.groups == 0 for shape in parts):
            raise PluginError(
                f"the weight rule for {self.checkpoint} cannot fuse parts of the shapes "
                f"{', '.join(str(list(shape)) for shape in parts)} in {self.groups} group(s) of "
                "rows"
            )
        shape = (sum(shape[0] for shape in parts), *columns.pop())
        return shape[::-1] if self._is_transposed(len(shape)) else shape

    def split(self, tensor: Tensor, parts: Sequence[Shape]) -> Sequence[Tensor]:
        """Return the parts of a checkpoint tensor, given their shapes, without a stack."""
        as_stored = tensor.T if self._is_transposed(tensor.dim()) else tensor
        return self.split_rows(as_stored, [shape[0] if shape else 1 for shape in parts])

    def split_rows(
        self,
        tensor: Tensor,  # [out, ...], not transposed
        num_rows: Sequence[int],
    ) -> Sequence[Tensor]:
        """Return each part's rows, views where they are contiguous."""
        if len(num_rows) == 1:
            return (tensor,)
        grouped = tensor.view(self.groups, len(tensor) // self.groups, *tensor.shape[1:])
        stops = list(accumulate(rows // self.groups for rows in num_rows))
        return [grouped[:, start:stop].flatten(0, 1) for start, stop in pairwise((0, *stops))]

    def _is_transposed(self, num_dims: int) -> bool:
        return self.transposed and num_dims == 2

    def _check_names(self) -> None:
        if not self.parts:
            raise PluginError(f"the weight rule for {self.checkpoint} has no parts")
        for name in (self.checkpoint, *self.parts):
            if any("{" in field and not _PLACEHOLDER.fullmatch(field) for field in name.split(".")):
                raise PluginError(
                    f"the weight rule for {self.checkpoint} has the name {name}; a placeholder "
                    "such as {layer} must stand between dots"
                )
            if len(found := _PLACEHOLDER.findall(name)) > len(set(found)):
                raise PluginError(
                    f"the weight rule for {self.checkpoint} has the name {name}; a placeholder "
                    "may stand in it once, so give each number a name of its own"
                )
        known, used = _placeholders(self.checkpoint), {*map(_placeholders, self.parts)}
        if len(used) > 1 or not known <= (own := used.pop()) or len(own - known) > 1:
            raise PluginError(
                f"the weight rule for {self.checkpoint} must have the same placeholders in all "
                "parts: those of the checkpoint's name, and at most one more"
            )


@dataclass(frozen=True, slots=True)
class WeightMatch:
    """A name of the checkpoint that matches a rule.

    Attributes:
        rule: The rule.
        numbers: Digits of each placeholder.
        suffix: End of the tensor's name, with its dot; empty for a module, or a name that the rule
            gives whole.
    """

    rule: WeightRule
    numbers: Mapping[str, str]
    suffix: str

    def part_names(self, index: int = 0) -> tuple[str, ...]:
        """Return the model's names of the parts; of a stack, those of one index."""
        numbers = dict(self.numbers)
        if self.rule.stack is not None:
            numbers[self.rule.stack] = str(index)
        return tuple(_filled(part, numbers) + self.suffix for part in self.rule.parts)


class WeightPrefixes:
    """Prefixes of a checkpoint's names, and those that they have for the rules.

    Args:
        prefixes: The checkpoint's prefix -> that of the rules' names.
    """

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        self._prefixes = prefixes

    def replaced(self, name: str) -> str:
        """Return a name of the checkpoint with the prefix that the rules know."""
        for theirs, ours in self._prefixes.items():
            if name.startswith(theirs):
                return ours + name.removeprefix(theirs)
        return name

    def restored(self, name: str, stored: Iterable[str]) -> str:
        """Return a name with the prefix that the checkpoint's layout gives it.

        A checkpoint without any of the prefixes has the names of the rules, or is of the layout
        that comes first.

        Args:
            name: Name with the prefix that the rules know.
            stored: Names of the checkpoint, which tell its layout.
        """
        fitting = {p: ours for p, ours in self._prefixes.items() if name.startswith(ours)}
        names = tuple(stored)
        used = {_layout(p) for p in self._prefixes if any(each.startswith(p) for each in names)}
        for theirs, ours in fitting.items():
            is_plain = not used and any(each.startswith(ours) for each in names)
            if _layout(theirs) in used or not (used or is_plain):
                return theirs + name.removeprefix(ours)
        return name


class WeightRules:
    """The rules of a model, looked up by name. The first rule that matches a name applies."""

    def __init__(self, rules: Iterable[WeightRule]) -> None:
        self._by_checkpoint = _Patterns()
        self._by_part = _Patterns()
        for rule in rules:
            self._by_checkpoint.add(rule.checkpoint, rule)
            for part in rule.parts:
                self._by_part.add(part, rule)

    def match(self, name: str) -> WeightMatch | None:
        """Return the match of a tensor of the checkpoint; None if no rule applies."""
        return next(_matches(self._by_checkpoint, name), None)

    def match_module(self, path: str) -> WeightMatch | None:
        """Return the match of a module of the checkpoint; None if no rule applies."""
        return next(_exact_matches(self._by_checkpoint, path, ""), None)

    def checkpoint_name(self, part: str) -> str:
        """Return the checkpoint's name of the tensor that holds a tensor of the model."""
        match = next(_matches(self._by_part, part), None)
        return (
            part if match is None else _filled(match.rule.checkpoint, match.numbers) + match.suffix
        )


class _Patterns:
    """Rules by patterns of names, found without a search through all of them."""

    def __init__(self) -> None:
        self._by_outline: dict[str, list[tuple[tuple[str, ...], WeightRule]]] = {}

    def add(self, pattern: str, rule: WeightRule) -> None:
        fields = tuple(pattern.split("."))
        self._by_outline.setdefault(_outline(fields), []).append((fields, rule))

    def find(self, name: str) -> Iterator[tuple[WeightRule, dict[str, str]]]:
        """Yield the rules whose pattern matches a name, with the digits of its placeholders."""
        given = name.split(".")
        for fields, rule in self._by_outline.get(_outline(given), ()):
            pairs = list(zip(fields, given, strict=True))
            if all(field == value or field[:1] == "{" for field, value in pairs):
                yield rule, {field[1:-1]: value for field, value in pairs if field[:1] == "{"}


def _matches(patterns: _Patterns, name: str) -> Iterator[WeightMatch]:
    """Yield the matches of a tensor's name: of the whole name, then of its module."""
    module, dot, suffix = name.rpartition(".")
    yield from _exact_matches(patterns, name, "")
    yield from _exact_matches(patterns, module, dot + suffix)


def _exact_matches(patterns: _Patterns, path: str, suffix: str) -> Iterator[WeightMatch]:
    return (WeightMatch(rule, numbers, suffix) for rule, numbers in patterns.find(path))


def _layout(prefix: str) -> str:
    return prefix.partition(".")[0]


def _outline(fields: Sequence[str]) -> str:
    """Return a name whose numbers and placeholders are all the same."""
    return ".".join("#" if _is_number(field) else field for field in fields)


def _is_number(field: str) -> bool:
    return (field.isascii() and field.isdecimal()) or field[:1] == "{"


def _placeholders(name: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(name))


def _filled(pattern: str, numbers: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda placeholder: numbers[placeholder[1]], pattern)
