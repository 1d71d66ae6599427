"""A policy's key as one that can be compared with every other: of plain data, with its kind first.

    None < numbers < text < bytes < tuples          (1, None) -> (4, (1, 1), (0,))

Keys that compare with some others only would break a queue in the middle of a step. Here that is
settled once, before the request is in any queue, and what cannot have a place in it is refused.
"""

from typing import Any

MAX_DEPTH = 8  # tuples in tuples

SortKey = tuple[Any, ...]


def sort_key(key: object, depth: int = 0) -> SortKey:
    """Return a key for sorting that has the order of `key`, and is in order with all others.

    Raises:
        TypeError: It is, or has in it, something else than None, numbers, text, bytes and tuples.
        ValueError: It has a number in it that is none (NaN), or too many tuples in tuples.
    """
    if key is None:
        return (0,)
    if isinstance(key, int):
        return (1, int(key))
    if isinstance(key, float):
        return (1, _in_order(float(key)))
    if isinstance(key, str):
        return (2, str(key))
    if isinstance(key, bytes):
        return (3, bytes(key))
    if not isinstance(key, tuple | list):
        raise TypeError(
            "a key is None, a number, text, bytes, or a tuple of these, not "
            f"{type(key).__qualname__}"
        )
    if depth == MAX_DEPTH:
        raise ValueError(f"a key has at most {MAX_DEPTH} tuples in each other")
    return (4, *(sort_key(part, depth + 1) for part in key))


def _in_order(number: float) -> float:
    if number != number:
        raise ValueError("a key must be a number, and is NaN")
    return number
