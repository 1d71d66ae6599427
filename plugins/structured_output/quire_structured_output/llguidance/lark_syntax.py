"""Checks of a client's context-free grammar in Lark's dialect.

llguidance's dialect of Lark has directives for other things than grammars: options of its own,
special tokens by name or id, files to import, and attributes that sample or stop. A client's
grammar is about text, so they are refused by name. A JSON schema in it (`%json {...}`) is brought
into normal form.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from quire.errors import GrammarError
from quire_structured_output.llguidance.lark_writing import json_part

MAX_GRAMMAR_LENGTH = 64 * 1024
MAX_DEPTH = 200  # of brackets
MAX_SCHEMAS = 256
_DIRECTIVES = ("%llguidance", "%import", "%lark", "%regex", "%override", "%extend", "%declare")
_QUOTED = re.compile(  # also what is not closed, so that each character is looked at once
    r'"(?:[^"\\\n]|\\.)*("?)i?|/(?![/*])(?:[^/\\\n]|\\.)+(/?)[imslux]*|//[^\n]*|#[^\n]*', re.DOTALL
)
_SCHEMA = re.compile(r"%json\b\s*")
_PIECE = re.compile(rf"{_SCHEMA.pattern}|{_QUOTED.pattern}", re.DOTALL)
_ATTRIBUTES = re.compile(r"^[ \t]*[?!]?[A-Za-z_]\w*[ \t]*\[([^\]\[]*)\][ \t]*:", re.MULTILINE)
_START = re.compile(r"^[ \t]*[?!]?start[ \t]*(?:\.\d+)?[ \t]*:", re.MULTILINE)


def is_gbnf(text: str) -> bool:
    """Return whether a grammar is in GBNF: its rules are defined by `::=`; linear in its length."""
    return "::=" in _QUOTED.sub('""', text)


def check_length(text: str) -> None:
    """Check that a grammar of a client is neither empty nor too long.

    Raises:
        GrammarError: It is.
    """
    if not text.strip():
        raise GrammarError("the grammar is empty; it needs a rule 'start'")
    if len(text) > MAX_GRAMMAR_LENGTH:
        raise GrammarError(
            f"the grammar has {len(text)} characters; at most {MAX_GRAMMAR_LENGTH} are allowed"
        )


def checked_lark(text: str, normal_form: Callable[[Any], dict[str, Any]]) -> str:
    """Check a grammar in Lark's dialect, and return it with its schemas in normal form.

    Args:
        text: The grammar.
        normal_form: Function that returns the normal form of a JSON schema in it.

    Raises:
        GrammarError: It is nested too deeply, has a text or regex that is not closed, a directive,
            a special token, or a schema that is not supported.
    """
    pieces = list(_pieces(text, normal_form))
    _check_bare("".join('""' if is_quoted else piece for piece, is_quoted in pieces))
    return "".join(piece for piece, _ in pieces)


def _pieces(text: str, normal_form: Callable[[Any], dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a grammar, and whether each is a text, a regex, a comment or a schema."""
    position = num_schemas = 0
    while found := _PIECE.search(text, position):
        yield text[position : found.start()], False
        position = found.end()
        if found[0].startswith("%json"):
            num_schemas += 1
            if num_schemas > MAX_SCHEMAS:
                raise GrammarError(f"the grammar has more than {MAX_SCHEMAS} JSON schemas")
            schema, position = _schema_at(text, position)
            yield json_part(normal_form(schema)), True
        elif found[1] == "" or found[2] == "":
            raise GrammarError(f"the grammar has a text or regex without an end: {found[0]:.60}")
        else:
            yield found[0], True
    yield text[position:], False


def _schema_at(text: str, position: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema behind %json is not JSON: {error}") from None


def _check_bare(bare: str) -> None:
    """Check a grammar without its texts; linear in its length."""
    for directive in _DIRECTIVES:
        if directive in bare:
            raise GrammarError(f"the grammar has the directive {directive}, which is not supported")
    if "<" in bare:
        raise GrammarError("the grammar has a special token ('<'), which is not supported")
    if found := _ATTRIBUTES.search(bare):
        raise GrammarError(f"the grammar has a rule with [{found[1]:.60}], which is not supported")
    if not _START.search(bare):
        raise GrammarError("the grammar has no rule 'start', where every text begins")
    depth = 0
    for char in bare:
        depth += (char in "([{") - (char in ")]}")
        if depth > MAX_DEPTH:
            raise GrammarError(f"the grammar has brackets nested more than {MAX_DEPTH} deep")
