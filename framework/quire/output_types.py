"""Conversion of output types to plain constraints: JSON schemas, regexes, choices, grammars.

Output types are what Python programs already have: Pydantic models, dataclasses, TypedDicts, Enums,
Literals, and the terms of the `outlines` package. pydantic is imported for a type that needs it;
outlines never is: an object of it exists only where it has been imported.
"""

import sys
from collections.abc import Callable, Mapping
from enum import EnumMeta
from types import GenericAlias, ModuleType, UnionType
from typing import Any, Literal, get_args, get_origin

from quire.errors import GrammarError, InvalidRequestError

MAX_CONSTRAINT_CHARACTERS = 2**20  # of one text; backends have smaller limits
MAX_CHOICES = 2**17
MAX_TERMS = 10_000  # of an expression of the outlines package, repetitions included

_TYPING = frozenset({"typing", "typing_extensions"})


def plain_schema(given: object) -> dict[str, Any] | str | bool:
    """Return a JSON schema: one as it is, or that of a type.

    Raises:
        InvalidRequestError: It is neither, or the type has no JSON schema.
        GrammarError: It is a text that is too long.
    """
    if isinstance(given, dict | bool):
        return given
    if isinstance(given, str):
        return _text(given, "json")
    if is_term(given, "JsonSchema"):
        return _schema_of_term(given)
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(given, pydantic.TypeAdapter):
        return _generated(given.json_schema, given)
    if _is_type(given):
        return _schema_of_type(given)
    raise _wrong_type(
        "json",
        given,
        "a JSON schema as a dict, as text or a boolean, or a type such as a Pydantic model",
    )


def plain_regex(given: object) -> str:
    """Return a regular expression: one as it is, or that of a term of outlines.

    Raises:
        InvalidRequestError: It is neither, or the term has no regular expression.
        GrammarError: It is too long.
    """
    if is_term(given, "Term"):
        return _text(_regex_of_term(given), "regex")
    if not isinstance(given, str):
        raise _wrong_type("regex", given, "a regular expression as text, or a term of outlines")
    return _text(given, "regex")


def plain_choice(given: object) -> tuple[str, ...]:
    """Return strings: those of a list, an Enum, a Literal, or a Choice of outlines.

    Raises:
        InvalidRequestError: It is none of these, or has something else than strings.
        GrammarError: There are too many, or they are too long together.
    """
    items = _choices(given)
    if len(items) > MAX_CHOICES:
        raise GrammarError(
            f"choice has {len(items)} strings; it takes at most {MAX_CHOICES}",
            param="structured_outputs.choice",
        )
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise _wrong_type(
                f"choice[{index}]", item, "a string; values that are JSON are given as json"
            )
    num_characters = sum(map(len, items))
    if num_characters > MAX_CONSTRAINT_CHARACTERS:
        raise _too_long("choice", num_characters)
    return tuple(map(str.__str__, items))  # not a subclass, such as a member of a StrEnum


def plain_grammar(given: object) -> str:
    """Return a context-free grammar: one as it is, or that of a CFG of outlines.

    Raises:
        InvalidRequestError: It is neither.
        GrammarError: It is too long.
    """
    if is_term(given, "CFG"):
        given = given.definition  # type: ignore[attr-defined]
    if not isinstance(given, str):
        raise _wrong_type("grammar", given, "a context-free grammar as text, or a CFG of outlines")
    return _text(given, "grammar")


def plain_structural_tag(given: object) -> dict[str, Any] | str:
    """Return a structural tag as it is.

    Raises:
        InvalidRequestError: It is neither a dict nor text.
        GrammarError: It is a text that is too long.
    """
    if isinstance(given, dict):
        return given
    if not isinstance(given, str):
        raise _wrong_type("structural_tag", given, "a dict or JSON text")
    return _text(given, "structural_tag")


def constraint_of_type(given: object) -> Mapping[str, object]:
    """Return the field of `StructuredOutputsParams` that an output type stands for.

    A Literal or an Enum of strings is a choice; every other Python type is a JSON schema.

    Raises:
        InvalidRequestError: It is not an output type.
    """
    if is_term(given, "JsonSchema"):
        return {"json": given}
    if is_term(given, "CFG"):
        return {"grammar": given}
    if is_term(given, "Choice") and all(_is_plain(item) for item in _choices(given)):
        return {"choice": given}
    if is_term(given, "Term"):
        return {"regex": given}
    if _lists_values(given) and all(isinstance(item, str) for item in _choices(given)):
        return {"choice": given}
    pydantic = sys.modules.get("pydantic")
    is_adapter = pydantic is not None and isinstance(given, pydantic.TypeAdapter)
    if is_adapter or _is_type(given):
        return {"json": given}
    raise InvalidRequestError(
        "structured_outputs must be StructuredOutputsParams, a dict of its fields or an output "
        f"type, got {_shown(given)}",
        param="structured_outputs",
    )


def is_term(given: object, name: str) -> bool:
    """Whether an object is of a class of the outlines package."""
    terms = _terms()
    return terms is not None and isinstance(given, getattr(terms, name))


def _terms() -> ModuleType | None:
    return sys.modules.get("outlines.types.dsl")


def _is_type(given: object) -> bool:
    """Whether an object is a type, or a form of one such as `list[int]` or `int | None`."""
    return isinstance(given, type | GenericAlias | UnionType) or type(given).__module__ in _TYPING


def _lists_values(given: object) -> bool:
    return isinstance(given, EnumMeta) or get_origin(given) is Literal


def _choices(given: object) -> list[Any] | tuple[Any, ...]:
    """Return the values of which a completion is one, as they are."""
    if isinstance(given, list | tuple):
        return given
    if isinstance(given, EnumMeta):
        return [member.value for member in given]  # type: ignore[var-annotated]
    if get_origin(given) is Literal:
        return get_args(given)
    if is_term(given, "Choice"):
        items = _choices(given.items)  # type: ignore[attr-defined]
        return [str(item) if isinstance(item, int | float) else item for item in items]
    raise _wrong_type(
        "choice", given, "a list of strings, an Enum, a Literal or a Choice of outlines"
    )


def _is_plain(item: object) -> bool:
    return isinstance(item, str | int | float)


def _schema_of_term(given: Any) -> dict[str, Any] | str | bool:
    if given.whitespace_pattern is not None:
        raise InvalidRequestError(
            "whitespace_pattern of the JsonSchema is not supported: the backend decides which "
            "blanks JSON may have; leave it out, or give a regex",
            param="structured_outputs.json",
        )
    return plain_schema(given.schema)


def _schema_of_type(given: Any) -> dict[str, Any]:
    try:
        from pydantic import TypeAdapter
    except ImportError:
        raise InvalidRequestError(
            f"the JSON schema of {_shown(given)} needs the package pydantic, which is not "
            "installed: pip install pydantic, or give the schema as a dict",
            param="structured_outputs.json",
        ) from None
    return _generated(lambda: TypeAdapter(given).json_schema(), given)


def _generated(generate: Callable[[], dict[str, Any]], given: object) -> dict[str, Any]:
    try:
        return generate()
    except Exception as error:  # a type's own hooks may raise anything
        raise InvalidRequestError(
            f"{_shown(given)} has no JSON schema: {error!s:.400}", param="structured_outputs.json"
        ) from error


def _regex_of_term(given: Any) -> str:
    """Return the regular expression of a term.

    JSON within an expression is refused: outlines drops keywords of a schema silently.
    """
    terms: Any = _terms()
    waiting, num_terms = [given], 0
    while waiting:
        term = waiting.pop()
        num_terms += 1
        if num_terms > MAX_TERMS:
            raise GrammarError(
                f"the expression has more than {MAX_TERMS} terms, repetitions included",
                param="structured_outputs.regex",
            )
        if isinstance(term, terms.JsonSchema | terms.CFG) or not _has_regex(term, terms):
            raise InvalidRequestError(
                f"{_shown(term)} cannot be a part of a regular expression; give a JsonSchema as "
                "json and a CFG as grammar, each for itself",
                param="structured_outputs.regex",
            )
        if isinstance(term, terms.Term):
            waiting.extend(_parts(term, terms))
    try:
        return str(terms.to_regex(given))
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidRequestError(
            f"{_shown(given)} has no regular expression: {error!s:.400}",
            param="structured_outputs.regex",
        ) from error


def _has_regex(term: object, terms: Any) -> bool:
    return isinstance(term, terms.Term) or _is_plain(term)


def _parts(term: object, terms: Any) -> list[object]:
    """Return the terms within a term, and the items of a choice."""
    parts: list[object] = []
    for value in vars(term).values():
        if isinstance(value, terms.Term):
            parts.append(value)
        elif isinstance(value, list | tuple):
            parts.extend(value)
    return parts


def _text(given: str, field: str) -> str:
    if len(given) > MAX_CONSTRAINT_CHARACTERS:
        raise _too_long(field, len(given))
    return str.__str__(given)


def _too_long(field: str, num_characters: int) -> GrammarError:
    return GrammarError(
        f"{field} has {num_characters} characters; at most {MAX_CONSTRAINT_CHARACTERS} are allowed",
        param=f"structured_outputs.{field}",
    )


def _wrong_type(field: str, given: object, expected: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"structured_outputs.{field} must be {expected}; got {_shown(given)}",
        param=f"structured_outputs.{field}",
    )


def _shown(given: object) -> str:
    if isinstance(given, type):
        return f"the type {given.__qualname__:.100}"
    return f"an object of type {type(given).__name__:.100}"
