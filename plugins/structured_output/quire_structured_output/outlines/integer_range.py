"""Regular expressions of integers in a range, built digit by digit."""

import math
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.outlines.supported_keywords import Schema, refusal

MAX_BOUND = 2**53  # beyond it, JSON parsers disagree
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def integer_range(schema: Schema, path: str) -> tuple[int | None, int | None]:
    """Return the smallest and the largest integer that a schema allows; None for no bound.

    Raises:
        GrammarError: A bound is not a number or too large, or no integer is in the range.
    """
    lows = [_least(schema[word], word, path) for word in LOWER if word in schema]
    highs = [_most(schema[word], word, path) for word in UPPER if word in schema]
    low, high = max(lows, default=None), min(highs, default=None)
    if low is not None and high is not None and low > high:
        raise GrammarError(f"no integer satisfies the bounds at {path or '/'}")
    return low, high


def integers(low: int | None, high: int | None) -> str:
    """Return the expression of integers from `low` to `high` inclusive; zero has no sign."""
    parts = []
    if low is None or low < 0:
        most = None if low is None else -low
        least = 1 if high is None or high >= 0 else -high
        parts += [f"-{part}" for part in _positive(least, most)]
    if (low is None or low <= 0) and (high is None or high >= 0):
        parts.append("0")
    if high is None or high > 0:
        parts += _positive(max(1, low or 1), high)
    return f"(?:{'|'.join(parts)})"


def _least(value: Any, word: str, path: str) -> int:
    number = _number(value, word, path)
    return math.floor(number) + 1 if word == "exclusiveMinimum" else math.ceil(number)


def _most(value: Any, word: str, path: str) -> int:
    number = _number(value, word, path)
    return math.ceil(number) - 1 if word == "exclusiveMaximum" else math.floor(number)


def _number(value: Any, word: str, path: str) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise GrammarError(f"'{word}' at {path or '/'} must be a number")
    if not abs(value) <= MAX_BOUND:
        raise refusal(word, path, "beyond 2**53")
    return value


def _positive(low: int, high: int | None) -> list[str]:
    """Return expressions of the integers from `low`, at least 1, to `high`; None for no bound."""
    num_digits = len(str(low))
    if high is None:
        return [_same_length(str(low), "9" * num_digits), f"[1-9][0-9]{{{num_digits},}}"]
    parts = []
    for length in range(num_digits, len(str(high)) + 1):
        first, last = max(low, 10 ** (length - 1)), min(high, 10**length - 1)
        if first <= last:
            parts.append(_same_length(str(first), str(last)))
    return parts


def _same_length(low: str, high: str) -> str:
    """Return the expression of digits between two strings of the same length."""
    if not low:
        return ""
    rest = len(low) - 1
    if low[0] == high[0]:
        return low[0] + _same_length(low[1:], high[1:])
    first, last = int(low[0]), int(high[0])
    parts = []
    if low[1:] != "0" * rest:
        parts.append(low[0] + _same_length(low[1:], "9" * rest))
        first += 1
    if high[1:] != "9" * rest:
        parts.append(high[0] + _same_length("0" * rest, high[1:]))
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}][0-9]{{{rest}}}")
    return f"(?:{'|'.join(parts)})"
