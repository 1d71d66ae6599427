"""The properties that a schema in normal form evaluates, for `unevaluatedProperties`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quire_structured_output.schemas.schema_complement import Resolve
from quire_structured_output.schemas.schema_marks import ASIDE, NAMES_ONLY, NARROWED

MAX_DEPTH = 16


@dataclass(slots=True)
class Evaluated:
    """The properties that a schema evaluates whatever the value is.

    Attributes:
        names: Their names.
        regexes: Regexes of further names.
        are_all: Whether it evaluates all properties.
        is_known: Whether it evaluates no others for any value.
    """

    names: set[str] = field(default_factory=set)
    regexes: set[str] = field(default_factory=set)
    are_all: bool = False
    is_known: bool = True


def evaluated(schema: Any, resolve: Resolve) -> Evaluated:
    """Return the properties that a schema in normal form, with its marks, evaluates."""
    found = Evaluated()
    _add_evaluated(found, schema, resolve, 0)
    return found


def _add_evaluated(found: Evaluated, schema: Any, resolve: Resolve, depth: int) -> None:
    schema = resolve(schema)
    if not isinstance(schema, dict):
        return
    if depth > MAX_DEPTH or ASIDE in schema:
        found.is_known = False
        return
    if "anyOf" in schema or NARROWED in schema:
        found.is_known = False
    found.names |= schema.get("properties", {}).keys()
    if NAMES_ONLY not in schema:
        found.are_all = found.are_all or "additionalProperties" in schema
        found.regexes |= schema.get("patternProperties", {}).keys()
    for part in schema.get("allOf", ()):
        _add_evaluated(found, part, resolve, depth + 1)
