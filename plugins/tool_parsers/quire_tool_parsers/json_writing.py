"""JSON text of strings and of numbers that are written in another notation."""

import json
import math
import re

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WHOLE_NUMBER = re.compile(r"([-+]?)0*([0-9]+)(?:\.0*)?")
_MAX_DIGITS = 1000
_STRINGS = json.JSONEncoder(ensure_ascii=False)


def string_text(text: str) -> str:
    """Return a text as a JSON string."""
    return _STRINGS.encode(text)


def escaped(text: str) -> str:
    """Return a text as it stands within a JSON string."""
    return _STRINGS.encode(text)[1:-1]


def integer_text(text: str) -> str | None:
    """Return the JSON text of a whole number, `5.0` included; None if a text is none."""
    if len(text) > _MAX_DIGITS or (found := _WHOLE_NUMBER.fullmatch(text)) is None:
        return None
    sign, digits = found.groups()
    return digits if sign != "-" or digits == "0" else f"-{digits}"


def number_text(text: str) -> str | None:
    """Return the JSON text of a finite number, digits as written; None if a text is none."""
    if len(text) > _MAX_DIGITS or "_" in text or not text.isascii():
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    is_json = _JSON_NUMBER.fullmatch(text) is not None
    if math.isfinite(value):
        return text if is_json else integer_text(text) or repr(value)
    return integer_text(text)  # more digits than a float has
