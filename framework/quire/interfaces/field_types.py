"""Types of request fields that are more than a number: choices, texts, lists, and tokens.

A value passes three stages. `check` bounds what the caller gave and converts it. `resolve` knows
the model's vocabulary: it refuses token ids that do not exist, and tokenizes texts. `cells` returns
what the columns of the field hold on the device; these are int32 or float32, of fixed width.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from quire.errors import InvalidRequestError, PluginError

MAX_FLOAT32 = 3.4028234e38
MIN_INT32, MAX_INT32 = -(2**31), 2**31 - 1
MAX_CELLS = 65536  # per slot and column
MAX_SHOWN = 100  # characters of a value in a message
Cells = tuple[Sequence[int] | Sequence[float], ...]
TextRule = Literal["text", "word", "last"]
TEXT_RULES: tuple[TextRule, ...] = ("text", "word", "last")


@dataclass(frozen=True, slots=True)
class FieldVocabulary:
    """The part of a model's vocabulary that fields need.

    Attributes:
        size: V; token ids are smaller.
        encode: Function that returns the token ids of a text, without special tokens.
    """

    size: int
    encode: Callable[[str], list[int]]


@dataclass(frozen=True, slots=True)
class Column:
    """One device column of a field, `[slots, *shape]`.

    Attributes:
        suffix: Part of its name in `SampledRows.slot_fields` after the name of the field.
        shape: Shape of the cells of one slot.
        is_float: Whether its cells are float32; otherwise they are int32.
    """

    suffix: str
    shape: tuple[int, ...]
    is_float: bool = False


class FieldType(ABC):
    """Type of a request field whose value is not a number or a truth value."""

    @abstractmethod
    def check(self, value: Any, name: str) -> Any:
        """Return the value, converted; sizes are checked before anything is copied.

        Raises:
            InvalidRequestError: The value has another type, or is out of bounds.
        """

    def resolve(self, value: Any, name: str, vocabulary: FieldVocabulary) -> Any:
        """Return a checked value as steps get it: here, unchanged.

        Raises:
            InvalidRequestError: The vocabulary does not have one of its tokens.
        """
        del name, vocabulary
        return value

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the values that a request may have."""

    @abstractmethod
    def columns(self, vocab_size: int) -> tuple[Column, ...]:
        """Return the device columns."""

    @abstractmethod
    def cells(self, value: Any, vocab_size: int) -> Cells:
        """Return the first cells of each column for a resolved value; later ones are not read."""


@dataclass(frozen=True, slots=True)
class OneOf(FieldType):
    """One of several strings; on the device, its index as `[slots, 1]`."""

    choices: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.choices or len(set(self.choices)) != len(self.choices):
            raise PluginError(f"OneOf takes distinct strings, got {self.choices!r}")

    def check(self, value: Any, name: str) -> str:
        """Return the string.

        Raises:
            InvalidRequestError: It is not one of the choices.
        """
        if not isinstance(value, str) or value not in self.choices:
            raise _refused(name, f"must be one of {', '.join(self.choices)}", value)
        return value

    def json_schema(self) -> dict[str, Any]:
        """Return an enum."""
        return {"type": "string", "enum": list(self.choices)}

    def columns(self, vocab_size: int) -> tuple[Column, ...]:
        """Return the column of the index."""
        del vocab_size
        return (Column("", (1,)),)

    def cells(self, value: str, vocab_size: int) -> Cells:
        """Return the index."""
        del vocab_size
        return ([self.choices.index(value)],)


@dataclass(frozen=True, slots=True)
class Text(FieldType):
    """A string; on the device, its UTF-8 bytes as `[slots, max_bytes]` and their `.count`."""

    max_bytes: int = 256

    def __post_init__(self) -> None:
        _check_size("Text.max_bytes", self.max_bytes)

    def check(self, value: Any, name: str) -> str:
        """Return the string.

        Raises:
            InvalidRequestError: It is too long, or not valid Unicode.
        """
        return checked_text(value, name, self.max_bytes)

    def json_schema(self) -> dict[str, Any]:
        """Return a string with a limit; a character has up to four bytes."""
        return {"type": "string", "maxLength": self.max_bytes}

    def columns(self, vocab_size: int) -> tuple[Column, ...]:
        """Return the columns of the bytes and their number."""
        del vocab_size
        return Column("", (self.max_bytes,)), Column(".count", (1,))

    def cells(self, value: str, vocab_size: int) -> Cells:
        """Return the bytes and their number."""
        del vocab_size
        data = value.encode()
        return data, [len(data)]


@dataclass(frozen=True, slots=True)
class ListOf(FieldType):
    """A list of numbers, truth values or choices: `[slots, max_items]` and its `.count`."""

    element: type[float] | type[int] | type[bool] | OneOf
    max_items: int
    minimum: float = -math.inf
    maximum: float = math.inf

    def __post_init__(self) -> None:
        _check_size("ListOf.max_items", self.max_items)
        if self.element not in (float, int, bool) and not isinstance(self.element, OneOf):
            raise PluginError(
                f"ListOf takes float, int, bool or OneOf(...), got {self.element!r}; texts of "
                "tokens are TokenTexts, and sets of token ids are TokenSet"
            )

    def check(self, value: Any, name: str) -> list[Any]:
        """Return the list with all elements converted.

        Raises:
            InvalidRequestError: It is too long, or an element is out of bounds.
        """
        items = _checked_list(value, name, self.max_items)
        element = self.element
        if isinstance(element, OneOf):
            return [element.check(item, name) for item in items]
        return [
            checked_number(item, f"{name}[{i}]", element, self.minimum, self.maximum, name)
            for i, item in enumerate(items)
        ]

    def json_schema(self) -> dict[str, Any]:
        """Return an array with a limit."""
        if isinstance(self.element, OneOf):
            items = self.element.json_schema()
        else:
            items = number_schema(self.element, self.minimum, self.maximum)
        return {"type": "array", "items": items, "maxItems": self.max_items}

    def columns(self, vocab_size: int) -> tuple[Column, ...]:
        """Return the columns of the elements and their number."""
        del vocab_size
        is_float = self.element is float
        return Column("", (self.max_items,), is_float), Column(".count", (1,))

    def cells(self, value: Sequence[Any], vocab_size: int) -> Cells:
        """Return the elements and their number."""
        del vocab_size
        element = self.element
        if isinstance(element, OneOf):
            value = [element.choices.index(item) for item in value]
        return value, [len(value)]


@dataclass(frozen=True, slots=True)
class TokenMap(FieldType):
    """A map of token ids to numbers: `.keys` and values `[slots, max_items]`, and its `.count`.

    Keys may be strings of digits, as in JSON.
    """

    max_items: int
    minimum: float = -math.inf
    maximum: float = math.inf

    def __post_init__(self) -> None:
        _check_size("TokenMap.max_items", self.max_items)

    def check(self, value: Any, name: str) -> dict[int, float]:
        """Return the map with integer keys.

        Raises:
            InvalidRequestError: It is too long, a key is not a token id, or there twice, or a
                value is out of bounds.
        """
        if not isinstance(value, Mapping):
            raise _refused(name, "must be a map of token ids to numbers", value)
        if len(value) > self.max_items:
            raise _too_long(name, len(value), self.max_items)
        checked: dict[int, float] = {}
        for key, number in value.items():
            token_id = _token_id_of(key, name)
            if token_id in checked:
                raise InvalidRequestError(f"{name} has token id {token_id} twice", param=name)
            checked[token_id] = checked_number(
                number, f"{name}[{token_id}]", float, self.minimum, self.maximum, name
            )
        return checked

    def resolve(
        self, value: Mapping[int, float], name: str, vocabulary: FieldVocabulary
    ) -> Mapping[int, float]:
        """Return the map.

        Raises:
            InvalidRequestError: The vocabulary does not have one of its tokens.
        """
        _check_token_ids(value, name, vocabulary)
        return value

    def json_schema(self) -> dict[str, Any]:
        """Return an object whose names are token ids."""
        return {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": number_schema(float, self.minimum, self.maximum),
            "maxProperties": self.max_items,
        }

    def columns(self, vocab_size: int) -> tuple[Column, ...]:
        """Return the columns of the keys, the values and their number."""
        del vocab_size
        shape = (self.max_items,)
        return Column("", shape, True), Column(".keys", shape), Column(".count", (1,))

    def cells(self, value: Mapping[int, float], vocab_size: int) -> Cells:
        """Return the values, the keys and their number."""
        del vocab_size
        return list(value.values()), list(value), [len(value)]


@dataclass(frozen=True, slots=True)
class TokenSet(FieldType):
    """A list of token ids as a set: a bitmask, `[slots, ceil(V / 32)]`, and its `.count`.

    Its length is limited by the vocabulary.
    """

    def check(self, value: Any, name: str) -> Sequence[Any]:
        """Return the list; its length is checked with the vocabulary.

        Raises:
            InvalidRequestError: It is not a list.
        """
        if not isinstance(value, list | tuple):
            raise _refused(name, "must be a list", value)
        return value

    def resolve(
        self, value: Sequence[Any], name: str, vocabulary: FieldVocabulary
    ) -> Sequence[int]:
        """Return the distinct token ids.

        Raises:
            InvalidRequestError: There are more than the vocabulary has, or one is not a token id.
        """
        if len(value) > vocabulary.size:
            raise _too_long(name, len(value), vocabulary.size)
        for index, token_id in enumerate(value):
            checked_number(token_id, f"{name}[{index}]", int, 0, vocabulary.size - 1, name)
        return sorted(set(value))

    def json_schema(self) -> dict[str, Any]:
        """Return an array of token ids."""
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}

    def columns(self, vocab_size: int) -> tuple[Column, ...]:
        """Return the columns of the bitmask and the number of tokens."""
        return Column("", (max(1, -(-vocab_size // 32)),)), Column(".count", (1,))

    def cells(self, value: Sequence[int], vocab_size: int) -> Cells:
        """Return the words of the bitmask, and the number of tokens; an empty set has no words."""
        if not value:
            return (), [0]
        mask = bytearray(4 * -(-vocab_size // 32))
        for token_id in value:
            mask[token_id >> 3] |= 1 << (token_id & 7)
        return struct.unpack(f"<{len(mask) // 4}i", mask), [len(value)]


@dataclass(frozen=True, slots=True)
class TokenTexts(FieldType):
    """Strings that the host tokenizes: `[slots, n, max_tokens]`, `.lengths` `[slots, n]`.

    Steps get lists of token ids. n is `max_items`, and twice as many for words.

    Attributes:
        max_items: Largest number of strings.
        max_tokens: Largest number of tokens of a string.
        max_bytes: Largest number of UTF-8 bytes of a string.
        rule: "text": the tokens of the string. "word": those at the beginning of a text, and those
            after a blank if they are as many and begin with another token. "last": the last token
            of the string after the letter a.
    """

    max_items: int
    max_tokens: int = 32
    max_bytes: int = 256
    rule: TextRule = "text"

    def __post_init__(self) -> None:
        _check_size("TokenTexts", self._max_rows * self.max_tokens)
        if self.rule not in TEXT_RULES:
            raise PluginError(
                f"a rule of TokenTexts must be one of {', '.join(TEXT_RULES)}, got {self.rule!r}"
            )

    @property
    def _max_rows(self) -> int:
        return 2 * self.max_items if self.rule == "word" else self.max_items

    def check(self, value: Any, name: str) -> list[str]:
        """Return the strings.

        Raises:
            InvalidRequestError: There are too many, or one is empty or too long.
        """
        items = _checked_list(value, name, self.max_items)
        texts = [
            checked_text(item, f"{name}[{index}]", self.max_bytes, name)
            for index, item in enumerate(items)
        ]
        for index, text in enumerate(texts):
            if not text or (self.rule == "word" and not text.strip()):
                raise InvalidRequestError(f"{name}[{index}] is blank", param=name)
        return texts

    def resolve(
        self, value: Sequence[str], name: str, vocabulary: FieldVocabulary
    ) -> list[list[int]]:
        """Return the token ids of each string, without repetitions.

        Raises:
            InvalidRequestError: A string has too many tokens, or none.
        """
        found: dict[tuple[int, ...], None] = {}
        for index, text in enumerate(value):
            forms = self._forms(text, vocabulary.encode)
            longest = max(len(form) for form in forms)
            if not 1 <= longest <= self.max_tokens:
                raise InvalidRequestError(
                    f"{name}[{index}] has {longest} tokens; it takes from 1 to {self.max_tokens}",
                    param=name,
                )
            for form in forms:
                _check_token_ids(form, name, vocabulary)
                found[tuple(form)] = None
        return [list(form) for form in found]

    def _forms(self, text: str, encode: Callable[[str], list[int]]) -> list[list[int]]:
        if self.rule == "text":
            return [encode(text)]
        if self.rule == "last":
            return [encode("a" + text)[-1:]]
        at_start, after_blank = encode(text.lstrip()), encode(" " + text.lstrip())
        differs = len(after_blank) == len(at_start) and after_blank[:1] != at_start[:1]
        return [at_start, after_blank] if differs else [at_start]

    def json_schema(self) -> dict[str, Any]:
        """Return an array of strings with limits."""
        items = {"type": "string", "minLength": 1, "maxLength": self.max_bytes}
        return {"type": "array", "items": items, "maxItems": self.max_items}

    def columns(self, vocab_size: int) -> tuple[Column, ...]:
        """Return the columns of the tokens, of the lengths, and of the number of texts."""
        del vocab_size
        rows = self._max_rows
        return (
            Column("", (rows, self.max_tokens)),
            Column(".lengths", (rows,)),
            Column(".count", (1,)),
        )

    def cells(self, value: Sequence[Sequence[int]], vocab_size: int) -> Cells:
        """Return the padded tokens, the lengths, and the number of texts."""
        del vocab_size
        padded = [[*ids, *[0] * (self.max_tokens - len(ids))] for ids in value]
        return list(chain.from_iterable(padded)), [len(ids) for ids in value], [len(value)]


def checked_number(
    value: Any,
    shown_name: str,
    kind: type[float] | type[int] | type[bool],
    minimum: float,
    maximum: float,
    param: str,
) -> float | int | bool:
    """Return a number of a list or a map, converted to its type; it fits int32 or float32.

    Raises:
        InvalidRequestError: It has another type or is out of range.
    """
    if kind is int:
        minimum, maximum = max(minimum, MIN_INT32), min(maximum, MAX_INT32)
    elif kind is float:
        minimum, maximum = max(minimum, -MAX_FLOAT32), min(maximum, MAX_FLOAT32)
    if not has_type(value, kind) or not minimum <= value <= maximum:
        raise _refused(shown_name, f"must be {described(kind, minimum, maximum)}", value, param)
    return kind(value)


def shown(value: Any) -> str:
    """Return a short form of a value for a message; a list or a map is not written out."""
    if isinstance(value, list | tuple | Mapping):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, str):
        value = value[:MAX_SHOWN]
    try:
        return f"{value!r:.{MAX_SHOWN}}"
    except ValueError:  # an integer of thousands of digits
        return f"an {type(value).__name__} of {value.bit_length()} bits"


def has_type(value: Any, kind: type) -> bool:
    """Return whether a value is a number of a kind; a truth value is none, and 1 is a float."""
    if kind is bool:
        return isinstance(value, bool)
    kinds = int if kind is int else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool)


def described(kind: type, minimum: float, maximum: float) -> str:
    """Return a number's type and range for a message."""
    if kind is bool:
        return "a bool"
    if kind is int and minimum > -math.inf and maximum < math.inf:
        return f"an int from {minimum} to {maximum}"
    article = "an" if kind is int else "a"
    bounds = f" from {minimum:g} to {maximum:g}" if minimum > -math.inf else ""
    return f"{article} {kind.__name__}{bounds}"


def number_schema(
    kind: type[float] | type[int] | type[bool], minimum: float, maximum: float
) -> dict[str, Any]:
    """Return the JSON schema of a number or a truth value."""
    if kind is bool:
        return {"type": "boolean"}
    schema: dict[str, Any] = {"type": "integer" if kind is int else "number"}
    if minimum > -math.inf:
        schema["minimum"] = minimum
    if maximum < math.inf:
        schema["maximum"] = maximum
    return schema


def _checked_list(value: Any, name: str, max_items: int) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _refused(name, "must be a list", value)
    if len(value) > max_items:
        raise _too_long(name, len(value), max_items)
    return list(value)


def checked_text(value: Any, name: str, max_bytes: int, param: str | None = None) -> str:
    """Return a text of a request.

    Raises:
        InvalidRequestError: It is no text, too long, or not valid Unicode.
    """
    if not isinstance(value, str):
        raise _refused(name, "must be a string", value, param)
    try:
        length = len(value) if len(value) > max_bytes else len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} is not valid Unicode: {error}", param=param or name
        ) from None
    if length > max_bytes:
        raise InvalidRequestError(
            f"{name} has {length} bytes or more; it takes at most {max_bytes}", param=param or name
        )
    return value


def _token_id_of(key: Any, name: str) -> int:
    """Return the token id of a map's key: an integer, or a short string of ASCII digits."""
    if isinstance(key, str) and len(key) <= 10 and key.isascii() and key.isdecimal():
        key = int(key)
    return int(checked_number(key, f"a key of {name}", int, 0, MAX_INT32, name))


def _check_token_ids(token_ids: Any, name: str, vocabulary: FieldVocabulary) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocabulary.size:
            raise InvalidRequestError(
                f"{name}: there is no token {token_id}; ids are from 0 to {vocabulary.size - 1}",
                param=name,
            )


def _check_size(what: str, size: Any) -> None:
    if not has_type(size, int) or not 1 <= size <= MAX_CELLS:
        raise PluginError(f"{what} must be from 1 to {MAX_CELLS} cells, got {size!r}")


def _too_long(name: str, length: int, max_items: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name} has {length} items; it takes at most {max_items}", param=name
    )


def _refused(name: str, wanted: str, value: Any, param: str | None = None) -> InvalidRequestError:
    return InvalidRequestError(f"{name} {wanted}, got {shown(value)}", param=param or name)
