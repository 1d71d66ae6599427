"""Limits on the cost of the normal form of a schema, charged while it is made.

All schemas of a constraint share them. Short schemas can multiply: references are followed again
for each check that needs what is behind them, so this work is charged, too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.schemas.written_size import charge_written, written_size

MAX_CHARACTERS = 512 * 1024
MAX_SCHEMAS = 20_000  # subschemas, each target of references once
MAX_DEPTH = 64
MAX_VALUES = 20_000  # of all enums
MAX_COMPARED = 10_000  # schemas, by checks of `oneOf`
MAX_FOLLOWED = 30_000  # references in these checks
MAX_WORK = 20_000  # of complements, of evaluated properties and of names that a regex matches


class SchemaBudget:
    """Counters of a translation, checked against the limits.

    Args:
        spent: What other schemas of the constraint have cost; it is added to.
    """

    def __init__(self, spent: Counter[str]) -> None:
        self._spent = spent

    def read(self, num_characters: int) -> None:
        """Charge the text of a schema; raises a GrammarError."""
        self._spent["characters"] += num_characters
        if self._spent["characters"] > MAX_CHARACTERS:
            raise GrammarError(
                f"the JSON schema has {self._spent['characters']} characters; at most "
                f"{MAX_CHARACTERS} are allowed"
            )

    def visit(self, path: str, depth: int) -> None:
        """Charge the subschema at `path`, `depth` schemas deep; raises a GrammarError."""
        self._spent["schemas"] += 1
        if self._spent["schemas"] > MAX_SCHEMAS or depth > MAX_DEPTH:
            raise GrammarError(
                f"the JSON schema has more than {MAX_SCHEMAS} parts, or is nested more than "
                f"{MAX_DEPTH} deep with its references followed, at {path or '/'}"
            )

    def list_values(self, count: int) -> None:
        """Charge values of an enum, or parts of them; raises a GrammarError."""
        self._spent["values"] += count
        if self._spent["values"] > MAX_VALUES:
            raise GrammarError(f"the enums have more than {MAX_VALUES} values together")

    def follow(self) -> None:
        """Charge a reference that is followed; raises a GrammarError."""
        self._spent["followed"] += 1
        if self._spent["followed"] > MAX_FOLLOWED:
            raise _too_many_comparisons()

    def compare(self, count: int) -> None:
        """Charge comparisons of schemas; raises a GrammarError."""
        self._spent["compared"] += count
        if self._spent["compared"] > MAX_COMPARED:
            raise _too_many_comparisons()

    def work(self, amount: int) -> None:
        """Charge work on parts that references may repeat; raises a GrammarError."""
        self._spent["work"] += amount
        if self._spent["work"] > MAX_WORK:
            raise GrammarError(
                "the JSON schema is too large once its references are followed under 'not', 'if', "
                "'unevaluatedProperties' or 'propertyNames'; use fewer of them"
            )

    def write(self, form: dict[str, Any]) -> None:
        """Charge a finished normal form; raises a GrammarError."""
        charge_written(self._spent, written_size(form))


def _too_many_comparisons() -> GrammarError:
    return GrammarError(
        "'oneOf' has too many or too large schemas to check that they exclude each other; use anyOf"
    )
