"""Parts of grammars in llguidance's dialect of Lark."""

import json
import re
from typing import Any

from quire_structured_output.regex_syntax import check_text

BLANK = "[ ]?"  # where JSON allows blanks
ESCAPES = r'"\bfnrt'  # so each character has one spelling


def json_part(schema: dict[str, Any]) -> str:
    """Return the part that is JSON by a schema in normal form."""
    options = {"whitespace_pattern": BLANK, "json_allowed_escapes": ESCAPES}
    return f"%json {json.dumps(schema | {'x-guidance': options})}"


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
