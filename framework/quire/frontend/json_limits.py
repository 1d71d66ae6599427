"""Limits of JSON that may come from a program: schemas of constraints, and tools.

A body's size is limited, but a program may give anything: a cycle, a set, NaN. Nothing of it is
copied, and nothing is walked recursively.
"""

import math
from typing import Any

from quire.errors import InvalidRequestError

MAX_CHARACTERS = 2**20  # in all texts and names
MAX_VALUES = 2**18
MAX_DEPTH = 128
MAX_INTEGER = 2**63

_Path = tuple[Any, str | int] | None  # the path of the parent, and the name in it


def check_json(given: Any, name: str) -> None:
    """Check that a value is JSON of a bounded size.

    Args:
        given: The value.
        name: Its name in the request, for the message.

    Raises:
        InvalidRequestError: It is not JSON, or it is too large, too deep or not valid Unicode.
    """
    num_characters = num_values = 0
    waiting: list[tuple[Any, int, _Path]] = [(given, 0, None)]
    while waiting:
        value, depth, path = waiting.pop()
        num_values += 1
        if isinstance(value, str):
            num_characters += len(value)
            _check_unicode(value, name, path)
        elif isinstance(value, dict):
            num_characters += sum(len(key) for key in value if isinstance(key, str))
        if num_characters > MAX_CHARACTERS or num_values + len(waiting) > MAX_VALUES:
            raise _refusal(
                name,
                f"{name} is too large: at most {MAX_VALUES} values with {MAX_CHARACTERS} "
                "characters are allowed",
            )
        if depth > MAX_DEPTH:
            raise _refusal(name, f"{name} is nested more than {MAX_DEPTH} deep")
        if isinstance(value, dict):
            for key, child in value.items():
                _check_key(key, name, path)
                waiting.append((child, depth + 1, (path, key)))
        elif isinstance(value, list | tuple):
            waiting.extend((child, depth + 1, (path, i)) for i, child in enumerate(value))
        else:
            _check_scalar(value, name, path)


def _check_key(key: object, name: str, path: _Path) -> None:
    if not isinstance(key, str):
        raise _refusal(
            name,
            f"{name} is not JSON: a name at {_pointer(path)} is a {type(key).__name__}, not text",
        )
    _check_unicode(key, name, path)


def _check_scalar(value: object, name: str, path: _Path) -> None:
    if not isinstance(value, str | int | float | None):
        raise _refusal(
            name, f"{name} is not JSON: the value at {_pointer(path)} is a {type(value).__name__}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise _refusal(name, f"{name} is not JSON: the number at {_pointer(path)} is {value}")
    if isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
        raise _refusal(
            name,
            f"the whole number at {_pointer(path)} of {name} has more than 64 bits; leave it out",
        )


def _check_unicode(text: str, name: str, path: _Path) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _refusal(
            name, f"the text at {_pointer(path)} of {name} is not valid Unicode: {error.reason}"
        ) from None


def _pointer(path: _Path) -> str:
    """Return a JSON pointer, of bounded length."""
    names: list[str] = []
    while path is not None:
        path, key = path
        names.append(str(key)[:40])
    return ("/" + "/".join(reversed(names)))[:200]


def _refusal(name: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=name)
