"""`uniqueItems` for arrays of free strings: what no grammar can say, a scanner of the text adds.

A parser of grammars does not compare one item with another. So the completion is read along, and
where the array is the value of a property whose items must be unique, a token is taken out of the
mask if it would complete a string that the array has already. Such a string can always go on with
another character, so that a mask is never empty for this reason.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BLANK, QUOTE, BACKSLASH = b" "[0], b'"'[0], b"\\"[0]
OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = b"[]{}"
COLON, COMMA = b":,"
NUM_QUOTES = 3  # of a token that may complete a string and then another one

Schema = Mapping[str, Any]


class UniqueTokens:
    """The tokens of a vocabulary, in an order in which those with a prefix are found.

    Args:
        tokens: Bytes -> ids of the tokens with these bytes.
    """

    def __init__(self, tokens: Mapping[bytes, Sequence[int]]) -> None:
        self._sorted = sorted(tokens)
        self._ids = tokens
        self.several = [each for each in self._sorted if each.count(b'"') >= NUM_QUOTES]

    def ids(self, token: bytes) -> Sequence[int]:
        """Return the ids of the tokens with these bytes."""
        return self._ids[token]

    def beginning_with(self, prefix: bytes) -> Iterable[int]:
        """Yield the ids of the tokens that begin with a prefix."""
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            token = self._sorted[index]
            if not token.startswith(prefix):
                return
            yield from self._ids[token]


@dataclass(slots=True)
class _Frame:
    """An array or object that is not closed."""

    is_array: bool
    is_unique: bool = False
    strings: frozenset[bytes] = frozenset()
    name: bytes = b""  # of the last property


@dataclass(slots=True)
class TextState:
    """What is known of a JSON text up to some byte.

    Attributes:
        names: Names of the properties whose arrays have unique strings, as JSON writes them.
    """

    names: frozenset[bytes]
    frames: list[_Frame] = field(default_factory=list)
    string: bytes | None = None  # that is not closed, from its quote on
    is_escaped: bool = False
    is_name: bool = False  # whether the string is the name of a property

    def copy(self) -> TextState:
        """Return an independent copy."""
        frames = [_Frame(f.is_array, f.is_unique, f.strings, f.name) for f in self.frames]
        return TextState(self.names, frames, self.string, self.is_escaped, self.is_name)

    def feed(self, octets: bytes) -> bool:
        """Read further bytes; return whether no string of a unique array is repeated."""
        return all(self._feed(octet) for octet in octets)

    def forbidden(self, tokens: UniqueTokens) -> set[int]:
        """Return the ids of the tokens that would repeat a string."""
        found: set[int] = set()
        if self.frames and self.frames[-1].is_unique:
            begun = self.string or b""
            for string in self.frames[-1].strings:
                if string.startswith(begun):
                    found.update(tokens.beginning_with(string[len(begun) :]))
                    if not begun:
                        found.update(tokens.beginning_with(b" " + string))
        for token in tokens.several:
            if not self.copy().feed(token):
                found.update(tokens.ids(token))
        return found

    def _feed(self, octet: int) -> bool:
        if self.string is not None:
            return self._feed_string(octet)
        top = self.frames[-1] if self.frames else None
        if octet == QUOTE:
            self.string = b'"'
        elif octet == OPEN_ARRAY:
            is_unique = top is not None and not top.is_array and top.name in self.names
            self.frames.append(_Frame(is_array=True, is_unique=is_unique))
        elif octet == OPEN_OBJECT:
            self.frames.append(_Frame(is_array=False))
            self.is_name = True
        elif octet in (CLOSE_ARRAY, CLOSE_OBJECT) and self.frames:
            self.frames.pop()
            self.is_name = False
        elif octet == COLON:
            self.is_name = False
        elif octet == COMMA:
            self.is_name = top is not None and not top.is_array
        return True

    def _feed_string(self, octet: int) -> bool:
        string = self.string = (self.string or b"") + bytes([octet])
        if self.is_escaped:
            self.is_escaped = False
        elif octet == BACKSLASH:
            self.is_escaped = True
        elif octet == QUOTE:
            self.string = None
            top = self.frames[-1] if self.frames else None
            if top is None:
                return True
            if self.is_name and not top.is_array:
                top.name = string
            elif top.is_unique:
                if string in top.strings:
                    return False
                top.strings |= {string}
        return True


def unique_names(schema: Schema, marker: str) -> frozenset[bytes] | None:
    """Return the names of properties whose arrays are marked as unique, as JSON writes them.

    Args:
        schema: Schema in normal form.
        marker: Keyword of the arrays whose items are to be unique.

    Returns:
        The names; None if a marked array is elsewhere, or a name stands for other arrays too.
    """
    found = _Names(schema, marker)
    found.scan(schema, None)
    for part in schema.get("$defs", {}).values():
        found.scan_inside(part)
    if found.is_elsewhere or found.marked & found.others:
        return None
    return frozenset(json.dumps(name, ensure_ascii=False).encode() for name in found.marked)


class _Names:
    def __init__(self, root: Schema, marker: str) -> None:
        self._defs = root.get("$defs", {})
        self._marker = marker
        self._seen: set[tuple[int, str | None]] = set()
        self.marked: set[str] = set()
        self.others: set[str] = set()
        self.is_elsewhere = False

    def scan(self, schema: Any, name: str | None) -> None:
        """Note what arrays a schema allows as the value of a property; None: of no property."""
        if not isinstance(schema, dict) or (id(schema), name) in self._seen:
            return
        self._seen.add((id(schema), name))
        if self._marker in schema:
            self.is_elsewhere |= name is None
            if name is not None:
                self.marked.add(name)
        elif name is not None and _may_be_array(schema):
            self.others.add(name)
        if "$ref" in schema:
            self.scan(self._defs.get(schema["$ref"].rsplit("/", 1)[1]), name)
        for word in ("allOf", "anyOf"):
            for part in schema.get(word, ()):
                self.scan(part, name)
        self._scan_parts(schema)

    def scan_inside(self, schema: Any) -> None:
        """Note the arrays inside a definition, which itself is noted where it is used."""
        if isinstance(schema, dict):
            self._scan_parts(schema)
            for word in ("allOf", "anyOf"):
                for part in schema.get(word, ()):
                    self.scan_inside(part)

    def _scan_parts(self, schema: Schema) -> None:
        for name, part in schema.get("properties", {}).items():
            self.scan(part, name)
        others: list[Any] = [schema.get("items"), schema.get("additionalProperties")]
        others += schema.get("prefixItems", ())
        others += schema.get("patternProperties", {}).values()
        for part in others:
            self.scan(part, None)


def _may_be_array(schema: Schema) -> bool:
    """Return whether a schema by itself says something about arrays."""
    types: Collection[str] = schema.get("type", ())
    types = {types} if isinstance(types, str) else set(types)
    return "array" in types or bool({"items", "prefixItems"} & schema.keys())
