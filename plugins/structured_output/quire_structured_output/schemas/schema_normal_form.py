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

import contextlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, UnknownDialect, specification_with

from quire.errors import GrammarError
from quire_structured_output.regex_syntax import check_text
from quire_structured_output.schemas.disjoint import json_type_of, keeps_type
from quire_structured_output.schemas.ecma_regex import whole_match
from quire_structured_output.schemas.ecma_search import is_found
from quire_structured_output.schemas.one_of import ExclusiveBranches
from quire_structured_output.schemas.schema_complement import (
    Complement,
    complement,
    evaluated,
    other_types,
)
from quire_structured_output.schemas.schema_dialects import keywords_of
from quire_structured_output.schemas.schema_facts import Comparison
from quire_structured_output.schemas.schema_marks import (
    ASIDE,
    MARKS,
    NAMES_ONLY,
    NARROWED,
    WIDENED,
    marked,
    remove_marks,
)
from quire_structured_output.schemas.value_counts import most_values
from quire_structured_output.schemas.written_size import charge_written, written_size
from quire_structured_output.unique.unique_places import UNIQUE

MAX_CHARACTERS = 512 * 1024
MAX_SCHEMAS = 20_000  # subschemas, each target of references once
MAX_DEPTH = 64
MAX_VALUES = 20_000  # of all enums
MAX_COMPARED = 10_000  # schemas, by checks of `oneOf`
MAX_FOLLOWED = 30_000  # references in these checks
MAX_WORK = 20_000  # of complements, of evaluated properties and of names that a regex matches
MAX_DEPENDENCIES = 4  # of one object; each doubles the alternatives
MAX_EXACT = 2**53
OF_OBJECTS = ("properties", "required", "additionalProperties", "patternProperties", NAMES_ONLY)
BESIDE = (
    "type",
    "enum",
    "properties",
    "required",
    "items",
    "additionalProperties",
    "patternProperties",
)  # what counts beside `oneOf`
MALFORMED = (
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    IndexError,
)  # what `referencing` raises

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
REFUSED = ("extends", "disallow", "divisibleBy")
MAX_COMBINATIONS = 64  # of names, for `minProperties` and `maxProperties`
MAX_POSITIONS = 8  # of the item that `contains` asks for
EVALUATING = frozenset(  # beside `unevaluatedItems`, which then depends on the value
    {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "contains"}
    | {"dependentSchemas"}
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_YEAR = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP}-02-29)"
)
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_POINTER = r"(?:/(?:[A-Za-z0-9 _.\-:@!$&'()*+,;=#%?\[\]{}]|~[01])*)*"
_PCHAR = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})"
_SEGMENT = r"(?:[A-Za-z0-9._~!$&'()*+,;=@\-]|%[0-9A-Fa-f]{2})"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_AUTHORITY = rf"//(?:{_LABEL}(?:\.{_LABEL})*)(?::[0-9]{{1,5}})?(?:/{_PCHAR}*)*"
_RELATIVE = rf"(?:{_AUTHORITY}|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?|{_SEGMENT}+(?:/{_PCHAR}*)*|){_TAIL}"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{_AUTHORITY}|{_PCHAR}+(?:/{_PCHAR}*)*){_TAIL}"
_REGEX_ATOM = (
    r"(?:(?:[A-Za-z0-9 _,:;=@#%&/<>!~'-]|\\[dDwWsS.\\/^$*+?()\[\]{}|-]|\."
    r"|\[\^?(?:a-z|A-Z|0-9|[A-Za-z0-9_. ]|\\[dws-])+\])(?:[*+?]|\{[0-9]{1,3}\})?)"
)
_PLAIN_LABEL = r"[A-Za-z0-9]{1,15}(?:-[A-Za-z0-9]{1,15}){0,2}"  # none begins with xn--
_VARIABLE = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?:\*|:[1-9][0-9]{0,3})?"
_EXPRESSION = rf"\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}}"
FORMATS = {  # of which a parser's own would be lenient, or that it lacks; some are narrower
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "regex": rf"\^?(?:{_REGEX_ATOM}|\((?:\?:)?{_REGEX_ATOM}+(?:\|{_REGEX_ATOM}+)*\)[*+?]?)*\$?",
    "uri-template": rf"(?:[A-Za-z0-9!#$&()*+,\-./:;=?@\[\]_~]|%[0-9A-Fa-f]{{2}}|{_EXPRESSION})*",
    "idn-hostname": rf"{_PLAIN_LABEL}(?:\.{_PLAIN_LABEL}){{0,4}}",
    "iri": _URI,
    "iri-reference": rf"(?:{_URI}|{_RELATIVE})",
}
SAME_FORMATS = ("email", "hostname", "ipv6", "uri", "duration")  # as a parser has them
NARROWER_FORMATS = {"idn-email": "email"}
EXACT_FORMATS = ("uuid", "ipv4")
KNOWN_FORMATS = ("color",)

Schema = dict[str, Any]


def normal_form(schema: Schema | str | bool, spent: Counter[str] | None = None) -> Schema:
    """Return the normal form of a schema; quick and safe for any schema.

    Args:
        schema: The schema.
        spent: What other schemas of the constraint have cost; they have limits together.

    Raises:
        GrammarError: It is not a JSON schema, is too large, or has a keyword without an equivalent.
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        spent = Counter() if spent is None else spent
        spent["characters"] += len(text)
        if spent["characters"] > MAX_CHARACTERS:
            raise GrammarError(
                f"the JSON schema has {spent['characters']} characters; at most {MAX_CHARACTERS} "
                "are allowed"
            )
        root = json.loads(text, parse_constant=_refuse_constant)
        return _Normalizer(root, spent).normal_form()
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
    """State of the translation of one schema."""

    def __init__(self, root: Any, spent: Counter[str]) -> None:
        if not isinstance(root, dict | bool):
            raise GrammarError("a JSON schema must be an object, true or false")
        self._root = root
        self._defs: dict[str, Any] = {}
        self._names: dict[int, str] = {}  # ids of targets of references
        self.one_ofs: list[_OneOf] = []
        self._targets: list[Any] = []  # kept, so that their ids are not used again
        self._spent = spent
        self._spec = DRAFT202012
        self._dynamic: dict[str, int] = {}
        if isinstance(root, dict):
            try:
                self._spec = specification_with(str(root.get("$schema", "")), default=DRAFT202012)
            except UnknownDialect:
                self._spec = DRAFT202012
            self._count_dynamic(root)
        self._is_old = self._spec.name in {"draft-03", "draft-04", "draft-06", "draft-07"}

    def normal_form(self) -> Schema:
        """Translate the root."""
        if self._root is False:
            raise GrammarError("nothing can satisfy the schema 'false' at /")
        if self._root is True:
            return {}
        resolver = self._resolver()
        found = self._schema(self._root, resolver, "", 0, is_root=True)
        if not isinstance(found, dict):
            raise GrammarError("nothing can satisfy the schema")
        self._complete_one_ofs()
        form = {**found, "$defs": self._defs} if self._defs else dict(found)
        remove_marks(form)
        charge_written(self._spent, written_size(form))
        return form

    def shared(self, part: Schema | bool) -> Schema | bool:
        """Return a reference to a part that is written several times."""
        if not isinstance(part, dict) or not part or set(part) == {"$ref"}:
            return part
        name = f"r{len(self._defs)}"
        self._defs[name] = part
        return {"$ref": f"#/$defs/{name}"}

    def _resolver(self) -> Any:
        """Return a resolver whose ids and anchors are known once and for all."""
        try:
            resource = self._spec.create_resource(self._root)
            uri = resource.id() or ""
            registry: Any = Registry().with_resource(uri, resource)
        except MALFORMED as error:
            raise GrammarError(f"the id of the JSON schema is not one: {error}") from None
        with contextlib.suppress(*MALFORMED):  # a lookup that needs the malformed part raises again
            registry = registry.crawl()
        return registry.resolver(uri)

    def _count_dynamic(self, root: Schema) -> None:
        """Count the dynamic anchors by name: a reference to a name that occurs once is static."""
        waiting: list[Any] = [root]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict):
                waiting += each.values()
                anchor = each.get("$dynamicAnchor")
                if isinstance(anchor, str):
                    self._dynamic[anchor] = self._dynamic.get(anchor, 0) + 1
                if each.get("$recursiveAnchor") is True:
                    self._dynamic["#"] = self._dynamic.get("#", 0) + 1
            elif isinstance(each, list):
                waiting += each

    def _schema(
        self, schema: Any, resolver: Any, path: str, depth: int, *, is_root: bool = False
    ) -> Schema | bool:
        """Translate the schema at `path`; False if it allows nothing."""
        if isinstance(schema, bool):
            return {} if schema else False
        if not isinstance(schema, dict):
            raise GrammarError(f"the schema at {path or '/'} is neither an object nor a boolean")
        self._spent["schemas"] += 1
        if self._spent["schemas"] > MAX_SCHEMAS or depth > MAX_DEPTH:
            raise GrammarError(
                f"the JSON schema has more than {MAX_SCHEMAS} parts, or is nested more than "
                f"{MAX_DEPTH} deep, at {path or '/'}"
            )
        if self._is_old and "$ref" in schema:
            return self._reference(schema["$ref"], resolver, path, depth)
        identifier = self._spec.id_of(schema) if not is_root else None
        if identifier is not None:
            try:
                resolver = resolver.in_subresource(self._spec.create_resource(schema))
            except MALFORMED as error:
                raise GrammarError(f"the id {identifier!r:.100} at {path}: {error}") from None
        known = keywords_of(schema, self._spec.name)
        return _Translation(self, known, resolver, path, depth).translate()

    def _reference(self, reference: Any, resolver: Any, path: str, depth: int) -> Schema | bool:
        """Return a reference to the translated target."""
        if not isinstance(reference, str):
            raise GrammarError(f"'$ref' at {path or '/'} must be a string")
        try:
            resolved = resolver.lookup(reference)
        except (Unresolvable, *MALFORMED):
            raise GrammarError(
                f"'$ref' at {path or '/'} leads to {reference!r:.200}, which is not in the schema; "
                "nothing is fetched, so put it into '$defs'"
            ) from None
        target = resolved.contents
        if isinstance(target, bool):
            return {} if target else False
        key = id(target)
        if key not in self._names:
            name = self._names[key] = f"r{len(self._defs)}"
            self._targets.append(target)
            self._defs[name] = {NARROWED: True}  # until it is known
            found = self._schema(target, resolved.resolver, path, depth + 1, is_root=True)
            self._defs[name] = found
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _complete_one_ofs(self) -> None:
        """Let the branches of each `oneOf` exclude each other."""
        exclusive = ExclusiveBranches(Comparison(self._followed, self.compare))
        found = []
        for each in self.one_ofs:
            branches = each.alternatives["anyOf"]
            demands = exclusive.demands(branches, each.base)
            for i, more in enumerate(demands):
                if more is None:
                    raise _refusal(
                        "oneOf", each.where, f"as its schema {i} and another may match; use anyOf"
                    )
            found.append([_all_of([b, *(d or [])]) for b, d in zip(branches, demands, strict=True)])
        for each, parts in zip(self.one_ofs, found, strict=True):
            each.alternatives["anyOf"] = parts

    def _followed(self, schema: Any) -> Any:
        """Follow references of the normal form for comparisons, of which it is charged."""
        self._spent["followed"] += 1
        if self._spent["followed"] > MAX_FOLLOWED:
            raise _too_many_comparisons()
        for _ in range(MAX_DEPTH):
            if not (isinstance(schema, dict) and set(schema) == {"$ref"}):
                break
            schema = self._defs[schema["$ref"].rsplit("/", 1)[1]]
        return schema

    def resolved(self, schema: Any) -> Any:
        """Follow references of the normal form; charges the work that it is done for."""
        self.charge(2)
        schema = self._followed(schema)
        if isinstance(schema, dict) and "enum" in schema:
            self.charge(sum(len(each) for each in schema["enum"] if isinstance(each, str)) // 8)
        return schema

    def charge(self, work: int) -> None:
        """Charge work on parts that references may repeat."""
        self._spent["work"] += work
        if self._spent["work"] > MAX_WORK:
            raise GrammarError(
                "the JSON schema is too large once its references are followed under 'not', 'if', "
                "'unevaluatedProperties' or 'propertyNames'; use fewer of them"
            )

    def count_values(self, count: int) -> None:
        """Charge values of an enum."""
        self._spent["values"] += count
        if self._spent["values"] > MAX_VALUES:
            raise GrammarError(f"the enums have more than {MAX_VALUES} values together")

    def compare(self, count: int) -> None:
        """Charge the work of comparisons of schemas."""
        self._spent["compared"] += count
        if self._spent["compared"] > MAX_COMPARED:
            raise _too_many_comparisons()

    def is_static(self, name: str) -> bool:
        """Whether a dynamic anchor occurs once, so that a dynamic reference to it is static."""
        return self._dynamic.get(name, 0) <= 1


class _Translation:
    """Translation of one schema object."""

    def __init__(
        self, normalizer: _Normalizer, schema: Schema, resolver: Any, path: str, depth: int
    ) -> None:
        self._all = normalizer
        self._given = schema
        self._resolver = resolver
        self._path = path
        self._depth = depth
        self._out: Schema = {}
        self._also: list[Schema | bool] = []  # further schemas that must hold

    def translate(self) -> Schema | bool:
        """Translate; False if nothing is allowed."""
        for word in REFUSED:
            if word in self._given:
                raise self._refusal(word)
        self._references()
        self._types_and_values()
        self._numbers()
        self._strings()
        self._arrays()
        self._objects()
        self._combined()
        self._negated()
        self._conditional()
        self._unevaluated()
        self._order()
        if False in self._also:
            return False
        also = [part for part in self._also if part]
        if not self._out and len(also) == 1:
            return also[0]
        return {**self._out, "allOf": also} if also else self._out

    def _order(self) -> None:
        """Put own properties behind those of `$ref` and `allOf` if these are written first."""
        words = [word for word in self._given if word in ("$ref", "allOf", "properties")]
        if "properties" not in self._out or not words or words[0] == "properties":
            return
        self._also.append({word: self._out.pop(word) for word in OF_OBJECTS if word in self._out})

    # --- references, types and values ---------------------------------------------------------

    def _references(self) -> None:
        given = self._given
        for word in ("$ref", "$dynamicRef", "$recursiveRef"):
            if word not in given:
                continue
            name = given[word]
            if word != "$ref" and not self._all.is_static(str(name).rpartition("#")[2] or "#"):
                raise self._refusal(word, "whose anchor occurs more than once")
            self._also.append(self._all._reference(name, self._resolver, self._path, self._depth))

    def _types_and_values(self) -> None:
        given, types = self._given, None
        if "type" in given:
            types = given["type"] if isinstance(given["type"], list) else [given["type"]]
            if not types or not all(isinstance(each, str) and each in TYPES for each in types):
                raise self._error("type", f"must be one or more of {', '.join(TYPES)}")
            self._out["type"] = types[0] if len(types) == 1 else list(dict.fromkeys(types))
        for word in ("enum", "const"):
            if word not in given:
                continue
            values = given[word] if word == "enum" else [given[word]]
            if not isinstance(values, list) or not values:
                raise self._error(word, "must be a non-empty list")
            self._all.count_values(len(values))
            kept = [value for value in values if types is None or keeps_type(value, types)]
            if not kept:
                raise GrammarError(f"nothing satisfies both 'type' and '{word}' at {self._where}")
            for value in kept:
                self._check_value(value, word, 0)
            if "enum" in self._out:
                self._also.append({"enum": kept})
            else:
                self._out["enum"] = kept

    def _check_value(self, value: Any, word: str, depth: int) -> None:
        """Check that every JSON parser reads the same value."""
        self._all.count_values(depth > 0)
        if depth > MAX_DEPTH:
            raise self._error(word, f"is nested more than {MAX_DEPTH} deep")
        kind = json_type_of(value)
        if kind == "string":
            check_text(value, f"'{word}' at {self._where}")
        elif kind in ("integer", "number") and not _is_exact(value):
            raise self._refusal(word, f"with the number {value}, which not every parser can read")
        elif kind == "array":
            for part in value:
                self._check_value(part, word, depth + 1)
        elif kind == "object":
            for name, part in value.items():
                check_text(name, f"'{word}' at {self._where}")
                self._check_value(part, word, depth + 1)

    # --- numbers and strings ------------------------------------------------------------------

    def _numbers(self) -> None:
        for side, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
            bound, limit = self._given.get(side), self._given.get(exclusive)
            if isinstance(limit, bool):  # draft 4
                limit, bound = (bound, None) if limit else (None, bound)
            for word, value in ((side, bound), (exclusive, limit)):
                if value is not None:
                    self._out[word] = self._bound(word, value, upwards=side == "minimum")
        divisor = self._given.get("multipleOf")
        if divisor is not None:
            if not _is_number(divisor) or not divisor > 0:
                raise self._error("multipleOf", "must be a number greater than 0")
            if not _is_exact(divisor):
                raise self._refusal("multipleOf", f"of {divisor}")
            self._out["multipleOf"] = divisor

    def _bound(self, word: str, value: Any, *, upwards: bool) -> Any:
        """Return a bound; one beyond 2**53 becomes a narrower one that a float can hold."""
        if not _is_number(value) or abs(value) > 1e300:
            raise self._error(word, "must be a number of ordinary size")
        if not isinstance(value, int) or abs(value) <= MAX_EXACT:
            return value
        near = float(value)
        if upwards and near < value:
            near = math.nextafter(near, math.inf)
        elif not upwards and near > value:
            near = math.nextafter(near, -math.inf)
        self._out[NARROWED] = True
        return int(near)

    def _strings(self) -> None:
        self._counts("minLength", "maxLength")
        given = self._given
        if "pattern" in given:
            where = f"'pattern' at {self._where}"
            if not isinstance(given["pattern"], str):
                raise GrammarError(f"{where} must be a string")
            self._out["pattern"] = _anchored(whole_match(given["pattern"], where))
        name = given.get("format")
        if name is None:
            return
        if not isinstance(name, str):
            raise self._error("format", "must be a string")
        name = NARROWER_FORMATS.get(name, name)
        if name in FORMATS:
            pattern: Schema = {"pattern": _pattern_of_format(name)}
            is_exact = name in EXACT_FORMATS
            self._also.append(pattern if is_exact else marked(pattern, NARROWED))
        elif name in SAME_FORMATS:
            self._also.append({"format": name})
        elif name in KNOWN_FORMATS:
            raise self._refusal("format", f"{name!r}")

    def _counts(self, low_word: str, high_word: str) -> tuple[int, int | None]:
        """Translate two counts, and return them."""
        found: list[int | None] = []
        for word in (low_word, high_word):
            value = self._given.get(word)
            if value is None:
                found.append(None)
                continue
            if not _is_number(value) or value != int(value) or not 0 <= value < 2**31:
                raise self._error(word, "must be a whole number from 0 to 2147483647")
            found.append(int(value))
            self._out[word] = int(value)
        low, high = found
        if low is not None and high is not None and low > high:
            raise GrammarError(
                f"nothing can satisfy '{low_word}' {low} and '{high_word}' {high} at {self._where}"
            )
        return low or 0, high

    # --- arrays -------------------------------------------------------------------------------

    def _arrays(self) -> None:
        given = self._given
        _, most = self._counts("minItems", "maxItems")
        prefix, items = given.get("prefixItems"), given.get("items")
        if isinstance(items, list):
            prefix, items = items, given.get("additionalItems")
        if items is None and "unevaluatedItems" in given:
            items = self._unevaluated_items()
        if prefix is not None:
            if not isinstance(prefix, list):
                raise self._error("prefixItems", "must be a list")
            self._out["prefixItems"] = [
                self._part(part, f"prefixItems/{i}") for i, part in enumerate(prefix)
            ]
        if items is not None:
            self._out["items"] = self._part(items, "items")
        if given.get("uniqueItems") is True and (most is None or most > 1):
            self._unique_items()
        if "contains" in given:
            self._contains(most)

    def _unevaluated_items(self) -> Any:
        """Return the schema of the items after `prefixItems`, if nothing else evaluates any."""
        rest = self._given["unevaluatedItems"]
        if rest is not True and EVALUATING & self._given.keys():
            raise self._refusal("unevaluatedItems", "beside keywords that evaluate items, too")
        return rest

    def _contains(self, most: int | None) -> None:
        """Translate `contains` to one array for each place of the item, up to a limit."""
        low, high = self._given.get("minContains", 1), self._given.get("maxContains")
        part = self._part(self._given["contains"], "contains")
        if low == 0 and high is None:
            return
        if high is not None or low != 1:
            word = "maxContains" if high is not None else "minContains"
            raise self._refusal(word)
        part = self._all.shared(part)
        others = {"type": other_types({"array"})}
        num_places = MAX_POSITIONS if most is None else min(MAX_POSITIONS, most)
        places = range(0 if part is False else num_places)
        arrays = [
            {"type": "array", "minItems": place + 1, "prefixItems": [*[{}] * place, part]}
            for place in places
        ]
        found = {"anyOf": [others, *arrays]}
        is_exact = part is False or (most is not None and most <= MAX_POSITIONS)
        self._also.append(found if is_exact else marked(found, NARROWED))

    def _unique_items(self) -> None:
        """Mark the array, for what reads the text, unless there are too few items."""
        low = self._out.get("minItems", 0)
        if low > 1 and "prefixItems" not in self._out:
            num_items = most_values(self._out.get("items", {}), self._all.resolved)
            if num_items is not None and low > num_items:
                raise GrammarError(
                    f"nothing satisfies 'uniqueItems' and 'minItems' at {self._where}"
                )
        self._out[UNIQUE] = True

    # --- objects ------------------------------------------------------------------------------

    def _objects(self) -> None:
        given, out = self._given, self._out
        properties = self._mapping("properties")
        if properties:
            out["properties"] = {
                name: self._part(part, f"properties/{_pointer(name)}")
                for name, part in properties.items()
            }
            for name in properties:
                check_text(name, f"a name in 'properties' at {self._where}")
        required = self._names_of("required") if not isinstance(given.get("required"), bool) else []
        if required:
            out["required"] = required
        patterns = self._mapping("patternProperties")
        if patterns:
            out["patternProperties"] = {
                _anchored(whole_match(regex, f"a name in 'patternProperties' at {self._where}")):
                self._part(part, f"patternProperties/{_pointer(regex)}")
                for regex, part in patterns.items()
            }  # fmt: skip
        if "additionalProperties" in given:
            out["additionalProperties"] = self._part(
                given["additionalProperties"], "additionalProperties"
            )
        self._property_names()
        self._count_properties(required)
        self._dependencies()

    def _property_names(self) -> None:
        """Translate `propertyNames` to `patternProperties` and no others."""
        names = self._given.get("propertyNames", True)
        if names is True:
            return
        out = self._out
        found = self._all.resolved(self._part(names, "propertyNames"))
        if found and not any(isinstance(name, str) for name in found.get("enum", [""])):
            found = False
        if found == {} or found == {"type": "string"}:
            return
        if found is False:
            self._also.append({"properties": {}, "additionalProperties": False})
            return
        if "patternProperties" in out:
            raise self._refusal("propertyNames", "beside 'patternProperties'")
        found = _joined(found)
        if NARROWED in found:
            out[NARROWED] = True
        found = {word: value for word, value in found.items() if word not in MARKS}
        if found.keys() >= {"minLength", "pattern"} and found["minLength"] == 1:
            del found["minLength"]
            out["properties"] = {**out.get("properties", {}), "": False}
        regex = _regex_of_names(found)
        if regex is None:
            raise self._refusal("propertyNames", "of this kind; use a pattern or an enum")

        def is_allowed(name: str) -> bool:
            return is_found(regex, name, "propertyNames", self._all.charge)

        listed = out.get("properties", {})
        out["properties"] = {
            name: part if is_allowed(name) else False for name, part in listed.items()
        }
        if not all(map(is_allowed, out.get("required", []))):
            raise GrammarError(
                f"nothing satisfies both 'required' and 'propertyNames' at {self._where}"
            )
        rest, pattern = out.get("additionalProperties", {}), _anchored(whole_match(regex, "a name"))
        if listed and rest != {}:  # which is not for listed names that match
            only = {"patternProperties": {pattern: {}}, "additionalProperties": False}
            self._also.append(only | {NAMES_ONLY: True})
            return
        out["patternProperties"] = {pattern: rest}
        if "additionalProperties" not in out:
            out[NAMES_ONLY] = True
        out["additionalProperties"] = False

    def _count_properties(self, required: list[str]) -> None:
        low, high = self._counts("minProperties", "maxProperties")
        if low <= len(set(required)):
            self._out.pop("minProperties", None)
        elif low > 1 and self._out.get("additionalProperties") is not False:
            raise self._refusal("minProperties", "above 1, as a name could be written twice")
        elif low > 1 and "patternProperties" in self._out:
            raise self._refusal("minProperties", "above 1 beside 'patternProperties'")
        listed = [
            name for name, part in self._out.get("properties", {}).items() if part is not False
        ]
        is_closed = self._out.get("additionalProperties") is False
        is_fixed = is_closed and "patternProperties" not in self._out
        if high is not None and is_fixed and high >= len(listed):
            del self._out["maxProperties"]
        if set(listed) <= set(required):
            return
        if "minProperties" in self._out:
            self._least_properties(listed, low, is_fixed=is_fixed)
        if "maxProperties" in self._out and is_fixed:
            self._most_properties(listed, self._out["maxProperties"])

    def _least_properties(self, listed: list[str], low: int, *, is_fixed: bool) -> None:
        """Write `minProperties` as the names of which all of some are there, or another one."""
        if math.comb(len(listed), low) > MAX_COMBINATIONS:
            return
        named: list[Schema] = [{"required": list(names)} for names in combinations(listed, low)]
        if not is_fixed:  # then it is one
            absent = {"properties": dict.fromkeys(listed, False), "minProperties": 1}
            named.append(absent)
        del self._out["minProperties"]
        self._also.append({"anyOf": named})

    def _most_properties(self, listed: list[str], high: int) -> None:
        """Write `maxProperties` as the names of which none of some is there."""
        num_absent = len(listed) - high
        if math.comb(len(listed), num_absent) > MAX_COMBINATIONS:
            return
        del self._out["maxProperties"]
        absent = combinations(listed, num_absent)
        parts = [{"properties": dict.fromkeys(names, False)} for names in absent]
        self._also.append({"anyOf": parts})

    def _dependencies(self) -> None:
        """Translate what a property asks of others: it is absent, or they hold."""
        found: list[tuple[str, Schema | bool]] = []
        for word in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needed in self._mapping(word).items():
                if isinstance(needed, list):
                    if not all(isinstance(each, str) for each in needed):
                        raise self._error(word, "must list names")
                    found.append((name, {"required": list(dict.fromkeys([name, *needed]))}))
                else:
                    part = self._part(needed, f"{word}/{_pointer(name)}")
                    holds: Schema | bool = {"required": [name]}
                    if part is False:
                        holds = False
                    elif part:
                        holds = {"allOf": [{"required": [name]}, part]}
                    found.append((name, holds))
        if len(found) > MAX_DEPENDENCIES:
            raise self._refusal("dependencies", f"with more than {MAX_DEPENDENCIES} properties")
        for name, holds in found:
            branches = [{"properties": {name: False}}, holds]
            self._also.append({"anyOf": [each for each in branches if each is not False]})

    # --- combinations -------------------------------------------------------------------------

    def _combined(self) -> None:
        for word in ("allOf", "anyOf", "oneOf"):
            if word not in self._given:
                continue
            branches = self._given[word]
            if not isinstance(branches, list) or not branches:
                raise self._error(word, "must be a non-empty list")
            parts = [self._part(part, f"{word}/{i}") for i, part in enumerate(branches)]
            if word == "allOf":
                self._also += parts
                continue
            self._also.append(self._exclusive(parts) if word == "oneOf" else _any_of(parts))

    def _exclusive(self, parts: list[Schema | bool]) -> Schema | bool:
        """Return the equivalent of `oneOf`, which is completed when references lead somewhere."""
        kept = [part for part in parts if part is not False]
        if len(kept) < 2:
            return kept[0] if kept else False
        base = {key: self._out[key] for key in BESIDE if key in self._out}
        alternatives: Schema = {"anyOf": kept, WIDENED: True}
        self._all.one_ofs.append(_OneOf(alternatives, base, self._where))
        return alternatives

    def _negated(self) -> None:
        if "not" not in self._given:
            return
        part = self._part(self._given["not"], "not")
        found = complement(part, self._all.resolved)
        if found is None:
            raise self._refusal("not", "of this kind")
        self._also.append(_written(found, _any_of([*found.parts]), ASIDE))

    def _conditional(self) -> None:
        given = self._given
        if "if" not in given or not ("then" in given or "else" in given):
            return
        condition = self._part(given["if"], "if")
        then = self._part(given.get("then", True), "then")
        other = self._part(given.get("else", True), "else")
        fails = complement(condition, self._all.resolved)
        if fails is None:
            raise self._refusal("if", "of this kind")
        if len(fails.parts) > 1:
            other = self._all.shared(other)
        branches = [_all_of([condition, then]), *(_all_of([each, other]) for each in fails.parts)]
        found = _any_of(branches)
        if isinstance(found, dict) and any(found is branch for branch in branches):
            found = {"anyOf": [found]}  # a `oneOf` is completed later, so it is not copied
        self._also.append(_written(fails, found, ASIDE))

    def _unevaluated(self) -> None:
        """Translate `unevaluatedProperties` where the evaluated ones are the same for all values.

        Properties that only a branch of `anyOf` evaluates are not allowed, which is narrower.
        """
        if "unevaluatedProperties" not in self._given:
            return
        if "propertyNames" in self._given:
            raise self._refusal("unevaluatedProperties", "beside 'propertyNames'")
        rest = self._part(self._given["unevaluatedProperties"], "unevaluatedProperties")
        found = evaluated({**self._out, "allOf": self._also}, self._all.resolved)
        if rest == {} or found.are_all:
            return
        closed: Schema = {
            "properties": {name: {} for name in sorted(found.names)},
            "patternProperties": {regex: {} for regex in sorted(found.regexes)},
            "additionalProperties": rest,
        }
        self._also.append(closed if found.is_known else marked(closed, NARROWED))

    # --- helpers ------------------------------------------------------------------------------

    def _part(self, schema: Any, where: str) -> Schema | bool:
        return self._all._schema(schema, self._resolver, f"{self._path}/{where}", self._depth + 1)

    def _mapping(self, word: str) -> Mapping[str, Any]:
        value = self._given.get(word, {})
        if not isinstance(value, dict):
            raise self._error(word, "must be an object")
        return value

    def _names_of(self, word: str) -> list[str]:
        value = self._given.get(word, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._error(word, "must be a list of names")
        for name in value:
            check_text(name, f"'{word}' at {self._where}")
        return list(dict.fromkeys(value))

    @property
    def _where(self) -> str:
        return self._path or "/"

    def _error(self, word: str, what: str) -> GrammarError:
        return GrammarError(f"'{word}' at {self._where} {what}")

    def _refusal(self, word: str, why: str = "") -> GrammarError:
        return _refusal(word, self._where, why)


def _written(found: Complement, schema: Schema | bool, *marks: str) -> Schema | bool:
    """Return what is written with a complement, and mark it if that is a part."""
    return marked(schema, *marks) if found.is_whole else marked(schema, NARROWED, *marks)


def _refusal(word: str, where: str, why: str = "") -> GrammarError:
    detail = f" {why}" if why else ""
    return GrammarError(
        f"no backend supports '{word}' at {where}{detail}; remove it, and validate the "
        "completion yourself"
    )


@cache
def _pattern_of_format(name: str) -> str:
    return _anchored(whole_match(f"^(?:{FORMATS[name]})$", "a format"))


def _too_many_comparisons() -> GrammarError:
    return GrammarError(
        "'oneOf' has too many or too large schemas to check that they exclude each other; use anyOf"
    )


def _anchored(expression: str) -> str:
    return f"^(?:{expression})$"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_exact(value: float) -> bool:
    return math.isfinite(value) and (isinstance(value, float) or abs(value) <= MAX_EXACT)


def _pointer(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def _all_of(parts: list[Schema | bool]) -> Schema | bool:
    if False in parts:
        return False
    kept = [part for part in parts if part]
    return {"allOf": kept} if len(kept) > 1 else kept[0] if kept else {}


def _any_of(parts: list[Schema | bool]) -> Schema | bool:
    kept = [part for part in parts if part is not False]
    if {} in kept:
        return {}
    return {"anyOf": kept} if len(kept) > 1 else kept[0] if kept else False


def _joined(found: Schema) -> Schema:
    """Return a schema with the keywords of its `allOf`, unless two say something of the same."""
    parts = [{word: value for word, value in found.items() if word != "allOf"}]
    parts += found.get("allOf", ())
    joined = {word: value for part in parts for word, value in part.items()}
    return joined if len(joined) == sum(map(len, parts)) else found


def _regex_of_names(found: Schema) -> str | None:
    """Return a regex of ECMA-262 for names that a schema allows; None: it is of another kind."""
    rest = {word: value for word, value in found.items() if word != "type"}
    if found.get("type", "string") != "string":
        return None
    if set(rest) == {"pattern"}:
        return str(rest["pattern"]).replace("\\x{", "\\u{")
    if rest == {"format": "uri"}:
        return f"^(?:{_URI})$"
    if set(rest) == {"enum"}:
        names = [re.sub(r"([^A-Za-z0-9])", lambda m: f"\\u{{{ord(m[1]):x}}}", name)
                 for name in rest["enum"] if isinstance(name, str)]  # fmt: skip
        return f"^(?:{'|'.join(names)})$" if names else None
    if set(rest) <= {"minLength", "maxLength"}:
        return rf"^[^]{{{rest.get('minLength', 0)},{rest.get('maxLength', '')}}}$"
    return None
