"""`oneOf` as an equivalent of `anyOf`: each branch demands what excludes the others.

What is demanded may be narrower than the schema: a value that only a property without an equivalent
tells apart from another branch is then not allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quire_structured_output.schemas.schema_complement import complement_parts, outside
from quire_structured_output.schemas.schema_facts import Comparison, Facts, Schema

MAX_DEMANDS = 16  # of one branch against another
WORK_WRITTEN = 25  # characters of words whose complement is written
MAX_COMPLEMENTS = 4  # of the schema of a property


class ExclusiveBranches:
    """Demands on the branches of `oneOf`.

    Args:
        comparison: Proofs that schemas exclude each other.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._resolve = comparison.resolve

    def demands(self, branches: Sequence[Any], base: Schema) -> list[list[Schema] | None]:
        """Return what to demand of each branch so that a value of it satisfies no other.

        Args:
            branches: Branches in normal form.
            base: What is beside `oneOf`.

        Returns:
            For each branch the schemas to add; None: they are not known.
        """
        found: list[list[Schema] | None] = []
        for i, own in enumerate(branches):
            demands: list[Schema] | None = []
            for k, other in enumerate(branches):
                if i == k or demands is None:
                    continue
                if self._comparison.are_disjoint([own, base], [other, base]):
                    continue
                apart = list(self._apart([own, base], other))[:MAX_DEMANDS]
                demands = [*demands, _any_of(apart)] if apart else None
            found.append(demands)
        return found

    def _apart(self, own: Sequence[Any], branch: Any) -> Iterator[Schema]:
        """Yield demands on values of `own`, each of which no value of another branch meets."""
        one, other = self._comparison.facts_of(own), self._comparison.facts_of([branch])
        if one is None or other is None:
            return
        if left := one.types - other.types:
            yield {"type": sorted(left)}
        found = []
        for kind in sorted(one.types & other.types):
            if self._comparison.are_disjoint([*own, {"type": kind}], [branch]):
                yield {"type": kind}
            else:
                found += [{"type": kind, **demand} for demand in self._ways(kind, one, other)]
        yield from found or complement_parts(branch, self._resolve)

    def _ways(self, kind: str, one: Facts, other: Facts) -> Iterator[Schema]:
        match kind:
            case "object":
                yield from self._objects(one, other)
            case "array":
                if self._comparison.have_disjoint_items(one, other):
                    yield {"minItems": 1}
                yield from _outside(other, kind)
            case "string":
                yield from _outside(other, kind)
                if other.values is not None:
                    words = list(other.values.get("string", {}).values())
                    self._comparison.charge(sum(map(len, words)) // WORK_WRITTEN)
                    others = complement_parts({"enum": words}, self._resolve)
                    yield from ({"pattern": p["pattern"]} for p in others if "pattern" in p)
            case "number":
                yield from _outside(other, kind)

    def _objects(self, one: Facts, other: Facts) -> Iterator[Schema]:
        for name in sorted(other.required.keys() - one.required.keys()):
            yield {"properties": {name: False}}
        for name, parts in one.properties.items():
            if False in parts:
                continue
            if not other.allows_name(name, self._comparison.regexes):
                yield {"required": [name]}
            elif others := other.properties.get(name):
                if self._comparison.are_disjoint(parts, others):
                    yield {"required": [name]}
                else:
                    yield from self._other_values(name, others)

    def _other_values(self, name: str, parts: Sequence[Any]) -> Iterator[Schema]:
        """Yield objects with a property whose value no other branch allows."""
        for part in parts:
            found = complement_parts(part, self._resolve)
            if len(found) <= MAX_COMPLEMENTS:
                for value in found:
                    yield {"required": [name], "properties": {name: value}}


def _outside(other: Facts, kind: str) -> Iterator[Schema]:
    """Yield demands on values of a type that break a bound or a count of another branch."""
    for word, value in (*other.low.items(), *other.high.items()):
        yield from (demand for demand in outside(word, value) if demand["type"] == kind)


def _any_of(parts: list[Schema]) -> Schema:
    return parts[0] if len(parts) == 1 else {"anyOf": parts}
