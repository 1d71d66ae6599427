"""Formats that users write: a TOML file with the fields of `CallFormat`."""

import re
from difflib import get_close_matches

import msgspec

from quire_tool_parsers.call_format import CallFormat

_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>[^`]*)`(?: - at `\$\.?(?P<path>[^`]*)`)?")


def read_format(text: str) -> CallFormat:
    """Return the format that the text of a file describes.

    Raises:
        ValueError: It describes none; the message names the field, and says what it may be.
    """
    try:
        form = msgspec.toml.decode(text.encode(), type=CallFormat)
    except msgspec.ValidationError as error:
        raise ValueError(_explained(str(error))) from error
    except msgspec.DecodeError as error:
        raise ValueError(f"it is not TOML: {error}") from error
    _check(form)
    return form


def _explained(message: str) -> str:
    """Return what is wrong with a field, with the fields that there are."""
    found = _UNKNOWN_FIELD.search(message)
    if found is None:
        return message.replace("`$.", "`")
    field, path = found["field"], found["path"] or ""
    if path:
        return f"there is no field {path}.{field}; see docs/tool_calls.md"
    known = sorted(CallFormat.__struct_fields__)
    near = get_close_matches(field, known, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no field {field!r}; {hint}The fields are {', '.join(known)}"


def _check(form: CallFormat) -> None:
    """Raise a ValueError if no call can be read by a format."""
    if not (form.section_open or form.call_open or form.is_bare):
        raise ValueError(
            "section_open or call_open must have a marker with which calls begin; for calls "
            "without a marker, set is_bare = true"
        )
    if not form.notations:
        raise ValueError("notations must have at least one notation")
    if "tagged" in form.notations and form.tags is None:
        raise ValueError("the notation tagged needs the table tags, with parameter_open")
    for name, texts in (
        ("section_open", form.section_open), ("section_close", form.section_close),
        ("call_open", form.call_open), ("call_close", form.call_close),
        ("separators", form.separators),
    ):  # fmt: skip
        if "" in texts:
            raise ValueError(f"{name} must not have an empty text")
    _check_header(form.header)


def _check_header(header: str) -> None:
    try:
        pattern = re.compile(header)
    except re.error as error:
        raise ValueError(f"header is no regular expression: {error}") from error
    if "name" not in pattern.groupindex:
        raise ValueError("header must have a group (?P<name>...)")
