"""A checkpoint's `response_template`, read and checked."""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from quire_tool_parsers.response_template.anchor import Anchor
from quire_tool_parsers.response_template.content import Reader, reader_of

MAX_FIELDS = 16
MAX_TRANSFORM_DEPTH = 16
THINKING, CONTENT, TOOL_CALLS = "thinking", "content", "tool_calls"
UNTYPED_KINDS = ("xml-inline", "kv-lines")  # whose values are written without types

_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
Texts = str | tuple[str, ...]


class FieldSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field as it is written; see docs/tool_calls.md."""

    open: Texts = ()
    open_pattern: str = ""
    close: Texts = ()
    close_pattern: str = ""
    content: str = "text"
    content_args: dict[str, Any] = {}
    repeats: bool = False
    join: str | None = None
    optional: bool = True
    transform: Any = None
    transform_each: bool = False


class TemplateSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A template as it is written."""

    fields: dict[str, FieldSpec]
    version: int = 1
    defaults: dict[str, Any] = {}
    start_anchor: Texts = ()
    start_anchor_pattern: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """A part of a completion.

    Attributes:
        name: Name of the field.
        open: What opens its regions; None: it has the text that is in no other region.
        close: What closes them; None: they go on to the end.
        spec: The field as it is written.
        read: Reader of the text of a region.
    """

    name: str
    open: Anchor | None
    close: Anchor | None
    spec: FieldSpec
    read: Reader

    @property
    def is_untyped(self) -> bool:
        """Whether the values of arguments are written without types."""
        return self.spec.content in UNTYPED_KINDS

    @property
    def strips(self) -> bool:
        """Whether blanks around the text of a region do not belong to it."""
        return self.spec.content_args.get("strip", True) is True

    def value(self, text: str, captures: dict[str, str]) -> Any:
        """Return the value of a region.

        Args:
            text: Text of the region.
            captures: Texts of the named groups of what opened and closed it.

        Raises:
            ValueError: The text has no value.
        """
        value, transform = self.read(text), self.spec.transform
        if transform is None:
            return value
        if not self.spec.transform_each:
            return _filled(transform, {**captures, "content": value})
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise ValueError("a list of objects is expected")
        return [_filled(transform, {**captures, **each}) for each in value]


@dataclass(frozen=True, slots=True)
class Template:
    """A template.

    Attributes:
        fields: Its fields, by name.
        start: What precedes a completion in the prompt.
    """

    fields: dict[str, Field]
    start: Anchor

    def markers(self) -> tuple[str, ...]:
        """Return the texts in which special tokens may be."""
        anchors = [each for field in self.fields.values() for each in (field.open, field.close)]
        texts = [text for anchor in anchors if anchor is not None for text in anchor.literals]
        quotes = [
            text
            for field in self.fields.values()
            for pair in field.spec.content_args.get("string_delims", ())
            for text in pair
        ]
        return tuple(dict.fromkeys((*texts, *quotes)))


def read_template(text: str) -> Template:
    """Return the template that a JSON text is.

    Raises:
        ValueError: It is none, or has what is not supported; the message names the field.
    """
    try:
        spec = msgspec.json.decode(text.encode(), type=TemplateSpec)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error).replace("`$.", "`")) from error
    if spec.version != 1:
        raise ValueError(f"version {spec.version} is not supported, only version 1")
    if not 0 < len(spec.fields) <= MAX_FIELDS:
        raise ValueError(f"fields must have 1 to {MAX_FIELDS} fields")
    start = _anchor("start_anchor", spec.start_anchor, spec.start_anchor_pattern)
    if start is None:
        raise ValueError("start_anchor or start_anchor_pattern is missing")
    fields = {name: _field(name, each) for name, each in spec.fields.items()}
    implicit = [name for name, field in fields.items() if field.open is None]
    if len(implicit) > 1:
        raise ValueError(f"only one field may have no open: {', '.join(implicit)}")
    return Template(fields, start)


def _field(name: str, spec: FieldSpec) -> Field:
    try:
        opening = _anchor("open", spec.open, spec.open_pattern)
        closing = _anchor("close", spec.close, spec.close_pattern)
        _check_transform(spec, opening, closing)
        if spec.join is not None and not spec.repeats:
            raise ValueError("join needs repeats")
        return Field(name, opening, closing, spec, reader_of(spec.content, spec.content_args))
    except ValueError as error:
        raise ValueError(f"fields.{name}: {error}") from error


def _anchor(name: str, texts: Texts, pattern: str) -> Anchor | None:
    if texts and pattern:
        raise ValueError(f"{name} and {name}_pattern are alternatives")
    if not texts and not pattern:
        return None
    try:
        return Anchor((texts,) if texts and isinstance(texts, str) else (*texts,), pattern)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_transform(spec: FieldSpec, *anchors: Anchor | None) -> None:
    if spec.transform is None:
        if spec.transform_each:
            raise ValueError("transform_each needs transform")
        names = sorted(name for anchor in anchors if anchor for name in anchor.groups)
        if names:
            raise ValueError(f"the groups {', '.join(names)} need a transform that names them")
    _check_strings(spec.transform, MAX_TRANSFORM_DEPTH)


def _check_strings(transform: Any, depth: int) -> None:
    if depth == 0:
        raise ValueError("transform is nested too deeply")
    match transform:
        case dict():
            parts = list(transform.values())
        case list():
            parts = transform
        case str() if _PLACEHOLDER.search(transform) and not _PLACEHOLDER.fullmatch(transform):
            raise ValueError(f"transform: {transform!r} must be one placeholder and no other text")
        case _:
            parts = []
    for part in parts:
        _check_strings(part, depth - 1)


def _filled(transform: Any, scope: dict[str, Any]) -> Any:
    """Return a transform with values for its placeholders."""
    if isinstance(transform, dict):
        return {key: _filled(each, scope) for key, each in transform.items()}
    if isinstance(transform, list):
        return [_filled(each, scope) for each in transform]
    found = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return transform
    value: Any = scope
    for key in found[1].split("."):
        if not isinstance(value, dict) or key not in value:
            raise ValueError(f"there is no {found[1]}")
        value = value[key]
    return value
