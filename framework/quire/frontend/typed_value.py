"""Values as decoded from JSON: conversion to types, with errors that name the wrong field."""

import json
from typing import Any, TypeVar

import msgspec

from quire.errors import InvalidRequestError

T = TypeVar("T")


def convert(value: Any, kind: type[T], where: str = "", *, is_text: bool = False) -> T:
    """Return a decoded value as a typed one.

    Args:
        value: Value as decoded from JSON.
        kind: Type to convert it to.
        where: Path of the value in the request, for the message.
        is_text: Whether numbers and booleans are written as texts.

    Raises:
        InvalidRequestError: The value has another type; `param` is the path of the field.
    """
    try:
        return msgspec.convert(value, kind, strict=not is_text)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        param = (where + path.removesuffix("`")).lstrip(".") or None
        message = f"{param}: {what}" if param else what
        raise InvalidRequestError(message, param=param) from None


def in_json(value: Any, max_characters: int = 80) -> str:
    """Return the beginning of a value as JSON, for a message; what is no JSON as Python has it."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (RecursionError, TypeError, ValueError):
        text = repr(value)
    return text[:max_characters]
