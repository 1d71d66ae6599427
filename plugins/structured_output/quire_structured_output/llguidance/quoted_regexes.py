r"""Regexes of a schema, so that llguidance quotes them in JSON as they are.

llguidance 1.9.1 writes a set of characters as JSON in which it allows every escape, `\"` and `\\`
among them, once the set holds all control characters (U+000A aside). So `[^"]` would match a quote.
A set without U+0000 is written character by character. So U+0000 is taken out of each set that
lacks a quote or a backslash. It is taken out by itself, too, as sets of alternatives are joined.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.schemas.ecma_regex import CharacterClass, Parser
from quire_structured_output.schemas.ecma_search import is_in
from quire_structured_output.schemas.subschemas import with_subschemas

_SET = re.compile(r"\[[^\]]*\]|\\x\{0\}")  # as the normal form writes it: brackets are escaped

Schema = dict[str, Any]


def with_quotable_regexes(schema: Any) -> Any:
    """Return a schema in normal form whose regexes are quoted exactly, but for U+0000."""
    if not isinstance(schema, dict):
        return schema
    found = with_subschemas(schema, with_quotable_regexes)
    if "pattern" in found:
        found["pattern"] = _SET.sub(_quotable, found["pattern"])
    if "patternProperties" in found:
        patterns = found["patternProperties"].items()
        found["patternProperties"] = {_SET.sub(_quotable, regex): part for regex, part in patterns}
    return found


def _quotable(found: re.Match[str]) -> str:
    given = _parsed(found[0])
    if not is_in("\0", given) or (is_in('"', given) and is_in("\\", given)):
        return found[0]
    return f"[{found[0]}&&[^\\x{{0}}]]"


@lru_cache(maxsize=1024)
def _parsed(text: str) -> CharacterClass:
    """Return one class or character of a regex in normal form."""
    parsed = Parser(text.replace("\\x{", "\\u{"), "a class").parse()
    (item,) = parsed.alternatives[0]
    if not isinstance(item.what, CharacterClass):
        raise GrammarError(f"{text!r} is not a class of a regex in normal form")
    return item.what
