"""Parts of grammars in llguidance's dialect of Lark."""

import json
import re
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.llguidance.number_ranges import with_number_ranges
from quire_structured_output.llguidance.quoted_regexes import with_quotable_regexes
from quire_structured_output.regex_syntax import check_text
from quire_structured_output.schemas.subschemas import all_subschemas
from quire_structured_output.unique.unique_places import UNIQUE

BLANK = "[ ]?"  # where JSON allows blanks
ESCAPES = r'"\bfnrt'  # with which each character has one spelling, and some controls have none
ALL_ESCAPES = ESCAPES + "u"  # of control characters only
CONTROL = r"\\(?:u00[01]|u007f|[bfnrt])"  # in JSON
_CONTROL_IN_NAME = re.compile(CONTROL + r'(?:[^"\\]|\\.)*": ')
_WITHOUT_SPELLING = re.compile(r"\\u00(?:[01]|7f)|(?<![\[\-}])\\\\x\{(?:[0-7bef]|1[0-9a-f])\}(?!-)")


def json_part(schema: dict[str, Any]) -> str:
    r"""Return the part that is JSON by a schema in normal form.

    Control characters may be written as `\u0000`, unless that would be a second spelling of a
    property's name, or of an item that must be unique. The parser lets additional names have such
    escapes of any character, so there are none either where these differ from others.

    Raises:
        GrammarError: Then, the schema has a control character that has no other spelling.
    """
    text = json.dumps(schema)
    has_one_spelling = (
        f'"{UNIQUE}"' in text or _CONTROL_IN_NAME.search(text) or _has_additional_names(schema)
    )
    if has_one_spelling and (found := _WITHOUT_SPELLING.search(text)):
        raise GrammarError(
            f"no backend supports the control character {found[0]} in a schema with 'uniqueItems', "
            "with such a character in the name of a property, or with properties beside additional "
            "ones ('additionalProperties' is not false)"
        )
    escapes = ESCAPES if has_one_spelling else ALL_ESCAPES
    options = {"whitespace_pattern": BLANK, "json_allowed_escapes": escapes}
    exact = with_number_ranges(with_quotable_regexes(schema))
    return f"%json {json.dumps(exact | {'x-guidance': options})}"


def _has_additional_names(schema: dict[str, Any]) -> bool:
    """Return whether an object has properties of its own and may have others."""
    return any(
        each.get("additionalProperties") is not False
        and (each.get("properties") or each.get("patternProperties"))
        for each in all_subschemas(schema)
    )


def literal(text: str) -> str:
    """Return the part that is one text.

    Raises:
        GrammarError: It has a lone surrogate.
    """
    check_text(text, "a literal text")
    return json.dumps(text, ensure_ascii=False)


def in_slashes(expression: str) -> str:
    """Return a regex as it is written between slashes."""
    parts = re.findall(r"\\[\s\S]|[\s\S]", expression)
    escaped = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n", "\\\r": r"\r"}
    return "".join(escaped.get(part, part) for part in parts)
