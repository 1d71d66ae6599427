"""Escapes of JSON texts that stand for half of a surrogate pair, which no text can have."""

import re

_FIRST, _SECOND, _EITHER = (rf"u[dD][{digits}][0-9a-fA-F]{{2}}" for digits in (
    "89abAB", "c-fC-F", "89a-fA-F",
))  # fmt: skip
_ESCAPE = re.compile(rf"\\(?:{_FIRST}\\{_SECOND}|(?P<half>{_EITHER})|.)", re.DOTALL)


def without_halves(text: str) -> str:
    """Return a JSON text with the replacement character for each half of a surrogate pair.

    Models write such escapes. What they stand for can neither be sent nor tokenized.
    """
    return _ESCAPE.sub(lambda found: r"\ufffd" if found["half"] else found[0], text)
