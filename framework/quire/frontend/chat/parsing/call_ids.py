"""Ids of tool calls, as OpenAI's clients know them, or as a model's chat template needs them."""

import re
from string import ascii_letters, digits

from quire.frontend.random_bytes import random_bytes

ALPHABET = ascii_letters + digits
_WRITTEN = re.compile(r"[!-~]{1,128}")  # what a model may write as an id: printable, no blanks


def new_call_id(length: int | None = None) -> str:
    """Return a new id of a tool call.

    Args:
        length: Number of letters and digits; None: `call_` and 24 hexadecimal digits.
    """
    if length is None:
        return f"call_{random_bytes.hex(12)}"
    number = random_bytes.bits(8 * length)
    characters = []
    for _ in range(length):
        number, index = divmod(number, len(ALPHABET))
        characters.append(ALPHABET[index])
    return "".join(characters)


def is_call_id(text: object) -> bool:
    """Whether a text that a model wrote can be the id of a call."""
    return isinstance(text, str) and _WRITTEN.fullmatch(text) is not None
