"""Total order of scheduling policies' sort keys: each value is tagged with its type's rank.

    None < numbers < text < bytes < tuples          (1, None) -> (4, (1, 1), (0,))

Keys of which only some can be compared would break a queue in the middle of a step. They are
normalized before the request is queued, and values without an order are rejected.
"""

from typing import Any

MAX_DEPTH = 8  # tuples in tuples

SortKey = tuple[Any, ...]

NO_KEY: SortKey = (0,)  # of None


def sort_key(key: object, depth: int = 0) -> SortKey:
    """Return a sort key with the order of `key` that can be compared with every other one.

    Raises:
        TypeError: It is or contains something other than None, numbers, text, bytes and tuples.
        ValueError: It contains NaN, or tuples nested too deeply.
    """
    if key is None:
        return NO_KEY
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
        raise ValueError(f"a key has at most {MAX_DEPTH} levels of nested tuples")
    return (4, *(sort_key(part, depth + 1) for part in key))


def _in_order(number: float) -> float:
    if number != number:
        raise ValueError("a key must not be NaN")
    return number
