"""Byte encodings of vocabularies: 256 printable characters for bytes, or tokens like `<0xE2>`.

Shared by detokenization and by grammars.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; a token outside the alphabet is its own text."""
    try:
        return bytes(map(byte_level_alphabet().__getitem__, token))
    except KeyError:
        return token.encode()


def single_byte(token: str) -> bytes | None:
    """Return the byte that a token like `<0xE2>` stands for; None if it is another token."""
    match = _BYTE_TOKEN.fullmatch(token) if token.startswith("<0x") else None
    return bytes([int(match[1], 16)]) if match else None


def flat_steps(part: dict[str, Any] | None, field: str) -> Iterator[dict[str, Any]]:
    """Yield a component of a tokenizer.json, or the components of a (nested) sequence.

    Args:
        part: Decoder or pre-tokenizer; None if there is none.
        field: Name of the field in which a sequence lists its components.
    """
    if part is None:
        return
    if part["type"] == "Sequence":
        for step in part[field]:
            yield from flat_steps(step, field)
    else:
        yield part


@cache
def byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each character of the byte-level alphabet.

    Printable Latin-1 characters stand for themselves; the others, in order, for the characters from
    U+0100 (as in GPT-2's published vocabulary).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}
