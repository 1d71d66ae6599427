"""Values of the text in a region: JSON and its dialects, tags, lines, Python's notation."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from quire_tool_parsers.json_scan import BLANKS
from quire_tool_parsers.json_writing import string_text
from quire_tool_parsers.python_reader import PythonReader
from quire_tool_parsers.response_template.pattern import Pattern

MAX_DEPTH = 8  # of values in values
MAX_DELIMS = 8

Reader = Callable[[str], Any]  # raises a ValueError if the text is no such value
STRING = r'"(?:\\.|[^"\\])*"'
_WHOLE_STRING = re.compile(r'"(?:\\.|[^"\\\x00-\x1f])*"')
_CONTROL = re.compile(r"[\x00-\x1f]")


class ContentArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the text of a region becomes a value.

    Attributes:
        strip: Whether blanks around it do not belong to it.
        unquoted_keys: Whether keys in JSON may be without quotes.
        string_delims: Markers before and after strings in JSON, beside quotes.
        allow_non_json: Whether text that is no JSON is a string.
        tag_pattern: Pattern of an argument, with the groups `key` and `value`.
        value_parser: How the values of arguments are read, `name` and `args`.
        merge_duplicates: Whether an argument that is there several times is a list.
        line_sep: Text between two lines.
        kv_sep: Text between the name of an argument and its value.
    """

    strip: bool = True
    unquoted_keys: bool = False
    string_delims: tuple[tuple[str, str], ...] = ()
    allow_non_json: bool = False
    tag_pattern: str = ""
    value_parser: dict[str, Any] | None = None
    merge_duplicates: bool = False
    line_sep: str = "\n"
    kv_sep: str = ":"


def reader_of(name: str, args: Mapping[str, Any], depth: int = 0) -> Reader:
    """Return the reader of a kind of content.

    Args:
        name: Name of the kind, as in a template.
        args: Its `content_args`.
        depth: Number of readers around this one.

    Raises:
        ValueError: There is no such kind, or an argument is wrong.
    """
    if name not in _KINDS:
        raise ValueError(f"there is no content {name!r}; there are {', '.join(_KINDS)}")
    if depth > MAX_DEPTH:
        raise ValueError("value_parser is nested too deeply")
    try:
        given = msgspec.convert(args, ContentArgs)
    except msgspec.ValidationError as error:
        raise ValueError(f"content_args: {error}") from error
    return _KINDS[name](given, depth)


def is_in_string(text: str) -> bool:
    """Whether a JSON text ends within a string that can still go on."""
    at = text.find('"')
    while at >= 0 and (found := _WHOLE_STRING.match(text, at)):
        at = text.find('"', found.end())
    return at >= 0 and _CONTROL.search(text, at) is None


def json_value(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is none.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("values are nested too deeply") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _text(args: ContentArgs, depth: int) -> Reader:
    del depth
    return str.strip if args.strip else str


def _plain(read: Reader) -> Callable[[ContentArgs, int], Reader]:
    """Return the maker of a reader that has no arguments."""

    def reader(args: ContentArgs, depth: int) -> Reader:
        del args, depth
        return read

    return reader


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("true", "1")


def _json(args: ContentArgs, depth: int) -> Reader:
    del depth
    as_json = _dialect(args) if args.unquoted_keys or args.string_delims else str

    def read(text: str) -> Any:
        try:
            return json_value(as_json(text))
        except ValueError:
            if not args.allow_non_json:
                raise
            return text.strip() if args.strip else text

    return read


def _dialect(args: ContentArgs) -> Callable[[str], str]:
    """Return a function that writes strings and keys of a dialect as in JSON."""
    delims = dict(args.string_delims)
    if len(delims) > MAX_DELIMS:
        raise ValueError(f"content_args: there are at most {MAX_DELIMS} string_delims")
    if "" in delims or "" in delims.values():
        raise ValueError("content_args: string_delims must not be empty texts")
    closing = "|".join(
        f"{re.escape(opening)}(?P<inner{number}>.*?){re.escape(end)}"
        for number, (opening, end) in enumerate(delims.items())
    )
    key = r"(?P<before>[{,]\s*)(?P<key>\w+)(?=\s*:)" if args.unquoted_keys else ""
    parts = [part for part in (closing, STRING, key) if part]
    pattern = re.compile("|".join(parts), re.DOTALL)

    def written(found: re.Match[str]) -> str:
        groups = found.groupdict()
        if groups.get("key") is not None:
            return f'{groups["before"]}"{groups["key"]}"'
        for name, inner in groups.items():
            if name.startswith("inner") and inner is not None:
                return string_text(inner)
        return found.group()

    return lambda text: pattern.sub(written, text)


def _tags(args: ContentArgs, depth: int) -> Reader:
    pattern, value_of = Pattern.for_search(args.tag_pattern), _values(args, depth)
    if "key" not in pattern.groups:
        raise ValueError("content_args: tag_pattern must have a group (?P<key>...)")

    def read(text: str) -> dict[str, Any]:
        values: dict[str, list[Any]] = {}
        for found in pattern.find_all(text):
            key = found.captures.get("key", "")
            values.setdefault(key, []).append(value_of(found.captures.get("value", "")))
        if args.merge_duplicates:
            return {key: each if len(each) > 1 else each[0] for key, each in values.items()}
        return {key: each[-1] for key, each in values.items()}

    return read


def _lines(args: ContentArgs, depth: int) -> Reader:
    value_of = _values(args, depth)
    if not args.line_sep or not args.kv_sep:
        raise ValueError("content_args: line_sep and kv_sep must not be empty")

    def read(text: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for line in text.split(args.line_sep):
            key, separator, value = line.partition(args.kv_sep)
            if separator:
                key, value = (key.strip(), value.strip()) if args.strip else (key, value)
                values[key] = value_of(value)
        return values

    return read


def _values(args: ContentArgs, depth: int) -> Reader:
    inner = args.value_parser
    if inner is None:
        return str
    if not inner.keys() <= {"name", "args"}:
        raise ValueError("content_args: value_parser has a name and args")
    return reader_of(inner.get("name", "text"), inner.get("args", {}), depth + 1)


def python_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls of a list in Python's notation, `[find(city="Oslo"), now()]`.

    Raises:
        ValueError: It is none.
    """
    rest, calls = text.strip(BLANKS), list[dict[str, Any]]()
    if not (rest.startswith("[") and rest.endswith("]")):
        raise ValueError("a list of calls is between [ and ]")
    rest = rest[1:-1].strip(BLANKS)
    while rest:
        reader = PythonReader()
        num_read = reader.read(rest, is_last=True)  # up to the name
        num_read += reader.read(rest[num_read:], is_last=True)
        if not reader.is_complete:
            raise ValueError("a call is not complete")
        calls.append({"name": reader.name, "arguments": json_value(reader.take_arguments())})
        rest = rest[num_read:].lstrip(BLANKS)
        if rest and not rest.startswith(","):
            raise ValueError("a comma is missing between two calls")
        rest = rest[1:].lstrip(BLANKS)
    return calls


_KINDS: dict[str, Callable[[ContentArgs, int], Reader]] = {
    "text": _text,
    "int": _plain(int),
    "float": _plain(float),
    "bool": _plain(_is_true),
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
    "python-call-list": _plain(python_calls),
}
