"""Translation of one schema object: what it says, and what is written of it so far.

The modules of keywords add to it, each its own: `array_keywords`, `object_keywords` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from quire.errors import GrammarError
from quire_structured_output.regex_syntax import check_text
from quire_structured_output.schemas.json_text import in_pointer
from quire_structured_output.schemas.schema_budget import SchemaBudget

Schema = dict[str, Any]


class Normalizer(Protocol):
    """What the translation of a schema object needs of that of the whole schema."""

    @property
    def budget(self) -> SchemaBudget:
        """Limits on the cost."""

    def schema(self, schema: Any, resolver: Any, path: str, depth: int) -> Schema | bool:
        """Return the translation of the schema at `path`; False if it allows nothing."""

    def reference(self, reference: Any, resolver: Any, path: str, depth: int) -> Schema | bool:
        """Return a reference to the translation of the target of a reference."""

    def is_static(self, anchor: str) -> bool:
        """Return whether a dynamic reference to an anchor is a static one."""

    def shared(self, part: Schema | bool) -> Schema | bool:
        """Return a reference to a part that is written several times."""

    def resolved(self, schema: Any) -> Any:
        """Follow references of the normal form; charges the work that it is done for."""

    def exclude_later(self, alternatives: Schema, base: Schema, where: str) -> None:
        """Let the branches of a `oneOf` exclude each other once all references lead somewhere.

        Args:
            alternatives: Schema with the branches as its `anyOf`, which is replaced.
            base: What is beside `oneOf`.
            where: Its place.
        """


class Translation:
    """Translation of one schema object.

    Args:
        normalizer: Translation of the whole schema.
        given: Keywords of the schema that its draft has.
        resolver: Resolver of its references.
        path: Its path.
        depth: Number of schemas around it.

    Attributes:
        normalizer: Translation of the whole schema.
        given: Keywords of the schema that its draft has.
        written: Keywords of the normal form.
        also: Further schemas that must hold.
    """

    def __init__(
        self, normalizer: Normalizer, given: Schema, resolver: Any, path: str, depth: int
    ) -> None:
        self.normalizer = normalizer
        self.given = given
        self.written: Schema = {}
        self.also: list[Schema | bool] = []
        self._resolver = resolver
        self._path = path
        self._depth = depth

    def result(self) -> Schema | bool:
        """Return all that is written as one schema; False if nothing is allowed."""
        if False in self.also:
            return False
        also = [part for part in self.also if part]
        if not self.written and len(also) == 1:
            return also[0]
        return {**self.written, "allOf": also} if also else self.written

    def part(self, schema: Any, *keys: str | int) -> Schema | bool:
        """Return the translation of a subschema; `keys` lead to it from here."""
        path = "/".join([self._path, *(in_pointer(str(key)) for key in keys)])
        return self.normalizer.schema(schema, self._resolver, path, self._depth + 1)

    def reference(self, reference: Any) -> Schema | bool:
        """Return a reference to the translation of the target of a reference."""
        return self.normalizer.reference(reference, self._resolver, self._path, self._depth)

    def mapping(self, word: str) -> Mapping[str, Any]:
        """Return the value of a keyword that has names; raises a GrammarError."""
        value = self.given.get(word, {})
        if not isinstance(value, dict):
            raise self.error(word, "must be an object")
        return value

    def names(self, word: str) -> list[str]:
        """Return the names that a keyword lists, each once; raises a GrammarError."""
        value = self.given.get(word, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(word, "must be a list of names")
        for name in value:
            check_text(name, f"'{word}' at {self.where}")
        return list(dict.fromkeys(value))

    @property
    def where(self) -> str:
        """Place of the schema object in error messages."""
        return self._path or "/"

    def error(self, word: str, what: str) -> GrammarError:
        """Return the error for a keyword whose value is malformed."""
        return GrammarError(f"'{word}' at {self.where} {what}")

    def refusal(self, word: str, why: str = "") -> GrammarError:
        """Return the error for a keyword without an equivalent."""
        return refusal(word, self.where, why)


def refusal(word: str, where: str, why: str = "") -> GrammarError:
    """Return the error for a keyword without an equivalent, at a place that is named."""
    detail = f" {why}" if why else ""
    return GrammarError(
        f"no backend supports '{word}' at {where}{detail}; remove it, and validate the "
        "completion yourself"
    )
