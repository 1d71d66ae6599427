"""Ids of calls for the chat template of a family that does not take any."""

import re
from hashlib import sha256
from string import ascii_lowercase, digits

from quire_tool_parsers.call_format import CallIds

LETTERS = digits + ascii_lowercase


def prompt_id(ids: CallIds, call_id: str, name: str, number: int) -> str:
    """Return the id that a chat template gets for a call.

    Ids that the template takes stay as they are.

    Args:
        ids: Ids that the template takes.
        call_id: Id in the conversation; empty if there is none.
        name: Name of the tool.
        number: Number of calls before this one.
    """
    if ids.length is not None:
        return _of_length(call_id or f"{name}:{number}", ids.length)
    if ids.text and not id_pattern(ids.text, name).fullmatch(call_id):
        return ids.text.replace("{name}", name).replace("{number}", str(number))
    return call_id


def _of_length(call_id: str, length: int) -> str:
    if len(call_id) == length and call_id.isascii() and call_id.isalnum():
        return call_id
    number = int.from_bytes(sha256(call_id.encode("utf-8", "surrogatepass")).digest(), "big")
    letters = []
    for _ in range(length):
        number, letter = divmod(number, len(LETTERS))
        letters.append(LETTERS[letter])
    return "".join(letters)


def id_pattern(text: str, name: str = "") -> re.Pattern[str]:
    """Return the pattern of the ids of a family.

    Args:
        text: Text of an id, as in `CallIds`; empty: any.
        name: Name of the tool; empty: any.
    """
    if not text:
        return re.compile(".+", re.DOTALL)
    escaped = re.escape(text).replace(re.escape("{name}"), re.escape(name) or r"\S+")
    return re.compile(escaped.replace(re.escape("{number}"), r"\d+"))
