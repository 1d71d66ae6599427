"""Texts of JSON, and names in JSON pointers."""

import json
from typing import Any


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is not JSON; NaN and the infinities, which Python writes, are not.
    """
    return json.loads(text, parse_constant=_refuse_constant)


def in_pointer(name: str) -> str:
    """Return a name as a part of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")
