"""Bounds and divisors of numbers, and counts, which are pairs of bounds of other types."""

from __future__ import annotations

import math
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.schemas.schema_marks import NARROWED
from quire_structured_output.schemas.schema_translation import Translation

MAX_EXACT = 2**53  # beyond it, JSON parsers disagree
LARGEST = 2**63 - 2**10  # size of a bound that a grammar has; a float, as all of this size
FIRST_TOO_LARGE = 10**18  # least size of a bound beyond which no range without an end has a grammar


def translate_numbers(translation: Translation) -> None:
    """Translate bounds and `multipleOf`; raises a GrammarError."""
    given, written = translation.given, translation.written
    for side, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        bound, limit = given.get(side), given.get(exclusive)
        if isinstance(limit, bool):  # draft 4
            limit, bound = (bound, None) if limit else (None, bound)
        for word, value in ((side, bound), (exclusive, limit)):
            if value is not None:
                written[word] = _bound(translation, word, value, upwards=side == "minimum")
    divisor = given.get("multipleOf")
    if divisor is not None:
        if not _is_number(divisor) or not divisor > 0:
            raise translation.error("multipleOf", "must be a number greater than 0")
        if not is_exact(divisor) or divisor > MAX_EXACT:
            raise translation.refusal("multipleOf", f"of {divisor}")
        written["multipleOf"] = divisor


def translate_counts(
    translation: Translation, low_word: str, high_word: str
) -> tuple[int, int | None]:
    """Translate two counts, and return them; None: there is no maximum.

    Raises:
        GrammarError: One is not a count, or they are out of order.
    """
    found: list[int | None] = []
    for word in (low_word, high_word):
        value = translation.given.get(word)
        if value is None:
            found.append(None)
            continue
        if not _is_number(value) or value != int(value) or not 0 <= value < 2**31:
            raise translation.error(word, "must be a whole number from 0 to 2147483647")
        found.append(int(value))
        translation.written[word] = int(value)
    low, high = found
    if low is not None and high is not None and low > high:
        raise GrammarError(
            f"nothing can satisfy '{low_word}' {low} and '{high_word}' {high} "
            f"at {translation.where}"
        )
    return low or 0, high


def is_exact(value: float) -> bool:
    """Return whether every JSON parser reads the same number."""
    return math.isfinite(value) and (isinstance(value, float) or abs(value) <= MAX_EXACT)


def _bound(translation: Translation, word: str, value: Any, *, upwards: bool) -> Any:
    """Return a bound; one beyond 2**53 becomes a narrower one that a float can hold.

    Raises:
        GrammarError: It is no number, or all numbers within are larger than those of grammars.
    """
    if not _is_number(value) or abs(value) > 1e300:
        raise translation.error(word, "must be a number of ordinary size")
    inwards = value if upwards else -value
    has_none = inwards >= FIRST_TOO_LARGE and _has_no_end(translation.given, upwards)
    if (has_none or inwards > LARGEST) and _is_of_numbers(translation.given):
        raise translation.refusal(word, f"of {value}")
    if -inwards > LARGEST:
        translation.written[NARROWED] = True
        return -LARGEST if upwards else LARGEST
    if not isinstance(value, int) or abs(value) <= MAX_EXACT:
        return value
    near = float(value)
    if upwards and near < value:
        near = math.nextafter(near, math.inf)
    elif not upwards and near > value:
        near = math.nextafter(near, -math.inf)
    translation.written[NARROWED] = True
    return int(near)


def _has_no_end(schema: dict[str, Any], upwards: bool) -> bool:
    """Whether a schema allows all numbers from a bound on, in one direction."""
    ends = {"maximum", "exclusiveMaximum"} if upwards else {"minimum", "exclusiveMinimum"}
    return ends.isdisjoint(schema)


def _is_of_numbers(schema: dict[str, Any]) -> bool:
    """Whether a schema allows numbers, by its type."""
    named = schema.get("type", "number")
    return not {"number", "integer"}.isdisjoint([named] if isinstance(named, str) else named)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
