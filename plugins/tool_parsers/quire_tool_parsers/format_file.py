"""Formats that users write: a TOML file with the fields of `CallFormat`."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

import msgspec

from quire.interfaces.tool_parsing import MAX_ID_LENGTH
from quire_tool_parsers.call_format import CallFormat, CallIds, JsonKeys, Tags
from quire_tool_parsers.call_writing import CallWriting
from quire_tool_parsers.header_check import check_header

TABLES: dict[str, type[msgspec.Struct]] = {
    "keys": JsonKeys, "tags": Tags, "call_ids": CallIds, "writing": CallWriting,
}  # fmt: skip

ID_PLACEHOLDERS = ("{name}", "{number}")

_UNKNOWN_FIELD = re.compile(r"unknown field `(?P<field>[^`]*)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}?|\}")
_ID = re.compile(r"[!-~]{1,64}")  # with its placeholders


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
    check_format(form)
    return form


def _explained(message: str) -> str:
    """Return what is wrong with a field, with the fields that there are."""
    found = _UNKNOWN_FIELD.search(message)
    if found is None:
        return message.replace("`$.", "`")
    field, path = found["field"], found["path"] or ""
    known = sorted(TABLES.get(path, CallFormat).__struct_fields__)
    near = get_close_matches(field, known, 1)
    name = f"{path}.{field}" if path else repr(field)
    hint = f"did you mean {near[0]!r}? " if near else ""
    of_table = f" of {path}" if path else ""
    return f"there is no field {name}; {hint}The fields{of_table} are {', '.join(known)}"


def check_format(form: CallFormat) -> None:
    """Raise a ValueError that names the field if no call can be read by a format."""
    if not (form.section_open or form.call_open or form.is_bare):
        raise ValueError(
            "section_open or call_open must have a marker with which calls begin; for calls "
            "without a marker, set is_bare = true"
        )
    if not form.notations:
        raise ValueError("notations must have at least one notation")
    if form.is_bare_anywhere and ("json" not in form.notations or form.call_open):
        raise ValueError(
            "is_bare_anywhere is for calls in the notation json that call_open does not mark"
        )
    for name in ("section_open", "section_close", "call_open", "call_close", "separators"):
        _check_texts(name, msgspec.structs.asdict(form)[name])
    _check_texts("quote", (form.quote,))
    _check_keys(form.keys)
    _check_tags(form)
    _check_call_ids(form.call_ids)
    check_header(form.header)


def _check_texts(name: str, texts: Iterable[str]) -> None:
    if "" in texts:
        raise ValueError(f"{name} must not have an empty text")


def _check_keys(keys: JsonKeys) -> None:
    if not keys.name or not keys.arguments:
        raise ValueError("keys.name and keys.arguments must have a key each")


def _check_tags(form: CallFormat) -> None:
    tags = form.tags
    if tags is None:
        if "tagged" in form.notations:
            raise ValueError("the notation tagged needs the table tags, with parameter_open")
        return
    for name, texts in (
        ("parameter_open", tags.parameter_open), ("parameter_close", tags.parameter_close),
    ):  # fmt: skip
        if not texts:
            raise ValueError(f"tags.{name} must have a marker")
        _check_texts(f"tags.{name}", texts)
    _check_texts("tags.key_close", (tags.key_close,))


def _check_call_ids(ids: CallIds) -> None:
    if ids.length is not None and not 1 <= ids.length <= MAX_ID_LENGTH:
        raise ValueError(f"call_ids.length must be from 1 to {MAX_ID_LENGTH}, not {ids.length}")
    if ids.text:
        _check_id_text(ids)


def _check_id_text(ids: CallIds) -> None:
    if ids.length is not None:
        raise ValueError("call_ids has either length or text, not both")
    wrong = [each for each in _PLACEHOLDER.findall(ids.text) if each not in ID_PLACEHOLDERS]
    if wrong:
        raise ValueError(
            f"call_ids.text has {wrong[0]!r:.80}, but only {' and '.join(ID_PLACEHOLDERS)} stand "
            "for something"
        )
    if "{number}" not in ids.text:
        raise ValueError("call_ids.text must have {number}, or two calls of a tool have one id")
    if not _ID.fullmatch(ids.text):
        raise ValueError("call_ids.text must be at most 64 characters of ASCII, without blanks")
