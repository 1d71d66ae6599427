r"""Normal form of a JSON schema: its meaning, in keywords that a parser honours exactly.

A schema of any dialect from draft 4 on becomes a schema of draft 2020-12 with

* references that are resolved: each target once, in `$defs` of the root; it may be recursive;
* regexes of ECMA-262 written for whole texts without escapes that engines read differently;
* formats as regexes where a parser is lenient;
* `oneOf`, `not`, `if`, `dependencies` and `propertyNames` as an equivalent of `anyOf` and
  `properties`, where there is one.

Nothing is dropped but annotations, unknown keywords and unknown formats, which JSON Schema defines
to constrain nothing. A keyword without an equivalent is refused by name.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.schemas.array_keywords import translate_arrays
from quire_structured_output.schemas.combining_keywords import (
    all_of,
    translate_branches,
    translate_if,
    translate_not,
)
from quire_structured_output.schemas.json_text import parse_json
from quire_structured_output.schemas.number_keywords import translate_numbers
from quire_structured_output.schemas.object_keywords import (
    order_properties,
    translate_objects,
    translate_unevaluated_properties,
)
from quire_structured_output.schemas.one_of import ExclusiveBranches
from quire_structured_output.schemas.reference_keywords import translate_references
from quire_structured_output.schemas.schema_budget import MAX_DEPTH, SchemaBudget
from quire_structured_output.schemas.schema_dialects import keywords_of
from quire_structured_output.schemas.schema_facts import Comparison
from quire_structured_output.schemas.schema_marks import NARROWED, remove_marks
from quire_structured_output.schemas.schema_resources import SchemaResources
from quire_structured_output.schemas.schema_translation import Schema, Translation, refusal
from quire_structured_output.schemas.string_keywords import translate_strings
from quire_structured_output.schemas.value_keywords import translate_values

REFUSED = ("extends", "disallow", "divisibleBy")
STEPS = (  # of the translation of a schema object; later ones read what earlier ones have written
    translate_references,
    translate_values,
    translate_numbers,
    translate_strings,
    translate_arrays,
    translate_objects,
    translate_branches,
    translate_not,
    translate_if,
    translate_unevaluated_properties,
    order_properties,
)


def normal_form(schema: Schema | str | bool, spent: Counter[str] | None = None) -> Schema:
    """Return the normal form of a schema; quick and safe for any schema.

    Args:
        schema: The schema.
        spent: What other schemas of the constraint have cost; they have limits together.

    Raises:
        GrammarError: It is not a JSON schema, is too large, or has a keyword without an equivalent.
    """
    budget = SchemaBudget(Counter() if spent is None else spent)
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        budget.read(len(text))
        root = parse_json(text)
        return _Normalizer(root, budget).normal_form()
    except RecursionError:
        raise GrammarError(f"the JSON schema is nested more than {MAX_DEPTH} deep") from None
    except (ValueError, TypeError) as error:
        raise GrammarError(f"the JSON schema is not JSON: {error}") from None


@dataclass(frozen=True, slots=True)
class _OneOf:
    """The translation of a `oneOf` whose branches do not exclude each other yet.

    Attributes:
        alternatives: Schema with the branches as its `anyOf`.
        base: What is beside `oneOf`.
        where: Its place.
    """

    alternatives: Schema
    base: Schema
    where: str


class _Normalizer:
    """Translation of one schema: its definitions, and what waits for all of them.

    Attributes:
        budget: Limits on the cost.
    """

    def __init__(self, root: Any, budget: SchemaBudget) -> None:
        if not isinstance(root, dict | bool):
            raise GrammarError("a JSON schema must be an object, true or false")
        self.budget = budget
        self._root = root
        self._resources = SchemaResources(root)
        self._defs: dict[str, Any] = {}
        self._names: dict[int, str] = {}  # ids of targets of references
        self._targets: list[Any] = []  # kept, so that their ids are not used again
        self._one_ofs: list[_OneOf] = []

    def normal_form(self) -> Schema:
        """Translate the root."""
        if self._root is False:
            raise GrammarError("nothing can satisfy the schema 'false' at /")
        if self._root is True:
            return {}
        found = self.schema(self._root, self._resources.resolver(), "", 0, is_root=True)
        if not isinstance(found, dict):
            raise GrammarError("nothing can satisfy the schema")
        self._complete_one_ofs()
        form = {**found, "$defs": self._defs} if self._defs else dict(found)
        remove_marks(form)
        self.budget.write(form)
        return form

    def schema(
        self, schema: Any, resolver: Any, path: str, depth: int, *, is_root: bool = False
    ) -> Schema | bool:
        """Return the translation of the schema at `path`; False if it allows nothing.

        Args:
            schema: The schema.
            resolver: Resolver of the references around it.
            path: Its path.
            depth: Number of schemas around it.
            is_root: Whether the resolver knows its id.

        Raises:
            GrammarError: It is malformed or too large, or has a keyword without an equivalent.
        """
        if isinstance(schema, bool):
            return {} if schema else False
        if not isinstance(schema, dict):
            raise GrammarError(f"the schema at {path or '/'} is neither an object nor a boolean")
        self.budget.visit(path, depth)
        if self._resources.has_lone_references and "$ref" in schema:
            return self.reference(schema["$ref"], resolver, path, depth)
        if not is_root:
            resolver = self._resources.inner_resolver(schema, resolver, path)
        known = keywords_of(schema, self._resources.draft)
        translation = Translation(self, known, resolver, path, depth)
        for word in REFUSED:
            if word in known:
                raise translation.refusal(word)
        for translate in STEPS:
            translate(translation)
        return translation.result()

    def reference(self, reference: Any, resolver: Any, path: str, depth: int) -> Schema | bool:
        """Return a reference to the translated target; raises a GrammarError."""
        target, resolver = self._resources.target(reference, resolver, path)
        if isinstance(target, bool):
            return {} if target else False
        key = id(target)
        if key not in self._names:
            name = self._names[key] = f"r{len(self._defs)}"
            self._targets.append(target)
            self._defs[name] = {NARROWED: True}  # until it is known
            self._defs[name] = self.schema(target, resolver, path, depth + 1, is_root=True)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def is_static(self, anchor: str) -> bool:
        """Return whether a dynamic reference to an anchor is a static one."""
        return self._resources.is_static(anchor)

    def shared(self, part: Schema | bool) -> Schema | bool:
        """Return a reference to a part that is written several times."""
        if not isinstance(part, dict) or not part or set(part) == {"$ref"}:
            return part
        name = f"r{len(self._defs)}"
        self._defs[name] = part
        return {"$ref": f"#/$defs/{name}"}

    def resolved(self, schema: Any) -> Any:
        """Follow references of the normal form; charges the work that it is done for."""
        self.budget.work(2)
        schema = self._followed(schema)
        if isinstance(schema, dict) and "enum" in schema:
            self.budget.work(
                sum(len(each) for each in schema["enum"] if isinstance(each, str)) // 8
            )
        return schema

    def exclude_later(self, alternatives: Schema, base: Schema, where: str) -> None:
        """Let the branches of a `oneOf` exclude each other once all references lead somewhere."""
        self._one_ofs.append(_OneOf(alternatives, base, where))

    def _complete_one_ofs(self) -> None:
        """Let the branches of each `oneOf` exclude each other."""
        exclusive = ExclusiveBranches(Comparison(self._followed, self.budget.compare))
        found = []
        for each in self._one_ofs:
            branches = each.alternatives["anyOf"]
            demands = exclusive.demands(branches, each.base)
            for i, more in enumerate(demands):
                if more is None:
                    raise refusal(
                        "oneOf", each.where, f"as its schema {i} and another may match; use anyOf"
                    )
            found.append([all_of([b, *(d or [])]) for b, d in zip(branches, demands, strict=True)])
        for each, parts in zip(self._one_ofs, found, strict=True):
            each.alternatives["anyOf"] = parts

    def _followed(self, schema: Any) -> Any:
        """Follow references of the normal form for comparisons, of which it is charged."""
        self.budget.follow()
        for _ in range(MAX_DEPTH):
            if not (isinstance(schema, dict) and set(schema) == {"$ref"}):
                break
            schema = self._defs[schema["$ref"].rsplit("/", 1)[1]]
        return schema
