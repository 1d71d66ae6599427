"""Adapters of fused modules, split into adapters of the matrices that the model has.

An adapter of a module that fuses several matrices, such as `c_attn`, has one A for all of them, and
the rows of its B are those of the module. So each part has the same A, and its own rows of B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.interfaces.lora import AdapterModule
from quire.interfaces.weight_rules import WeightMatch, WeightPrefixes, WeightRule, WeightRules


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """A module of the checkpoint that adapters can change.

    Attributes:
        parts: The model's names of its matrices, in order.
        num_rows: Number of rows of each matrix.
        num_columns: Number of inputs.
        rule: Rule by which it fuses them; None: it is one matrix.
    """

    parts: tuple[str, ...]
    num_rows: tuple[int, ...]
    num_columns: int
    rule: WeightRule | None = None

    def split(self, matrices: AdapterModule) -> dict[str, AdapterModule]:
        """Return the adapter of each matrix, by its name in the model."""
        if self.rule is None:
            return {self.parts[0]: matrices}
        rows = self.rule.split_rows(matrices.b, self.num_rows)
        return {
            part: AdapterModule(matrices.a, b, matrices.scale)
            for part, b in zip(self.parts, rows, strict=True)
        }


class AdaptedModules:
    """The modules of the checkpoint that adapters can change.

    Args:
        shapes: Rows and columns of each matrix that adapters can change, by its name in the model.
        rules: Rules of the checkpoint's names.
        prefixes: Prefixes of the checkpoint's names, which are replaced before.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, int]], rules: WeightRules, prefixes: WeightPrefixes
    ) -> None:
        self._shapes = shapes
        self._rules = rules
        self._prefixes = prefixes

    def find(self, module: str) -> AdaptedModule | None:
        """Return a module by its name in the checkpoint; None if it is no linear layer."""
        match = self._match(module)
        parts = self.part_names(module)
        is_stack = match is not None and match.rule.stack is not None
        if is_stack or any(part not in self._shapes for part in parts):
            return None
        rows, columns = zip(*(self._shapes[part] for part in parts), strict=True)
        return AdaptedModule(parts, rows, columns[0], None if match is None else match.rule)

    def part_names(self, module: str) -> tuple[str, ...]:
        """Return the model's names of a module's parts; of a stack, those of its first entry."""
        match = self._match(module)
        return (self._prefixes.replaced(module),) if match is None else match.part_names()

    def _match(self, module: str) -> WeightMatch | None:
        return self._rules.match_module(self._prefixes.replaced(module))
