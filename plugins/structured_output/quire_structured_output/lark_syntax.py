"""Checks of a client's context-free grammar in Lark's dialect.

llguidance's dialect of Lark has directives for other things than grammars: options of its own,
special tokens by name or id, files to import, and attributes that sample or stop. A client's
grammar is about text, so they are refused by name.
"""

import re

from quire.errors import GrammarError

MAX_GRAMMAR_LENGTH = 64 * 1024
MAX_DEPTH = 200  # of brackets
_DIRECTIVES = (
    "%llguidance", "%import", "%lark", "%regex", "%override", "%extend", "%declare", "%json"
)  # fmt: skip
_QUOTED = re.compile(  # also what is not closed, so that each character is looked at once
    r'"(?:[^"\\\n]|\\.)*("?)i?|/(?![/*])(?:[^/\\\n]|\\.)+(/?)[imslux]*|//[^\n]*|#[^\n]*', re.DOTALL
)
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


def check_lark(text: str) -> None:
    """Check a grammar in Lark's dialect; linear in its length.

    Raises:
        GrammarError: It is nested too deeply, has a text or regex that is not closed, a directive
            or a special token.
    """
    for quoted in _QUOTED.finditer(text):
        if quoted[1] == "" or quoted[2] == "":
            raise GrammarError(f"the grammar has a text or regex without an end: {quoted[0]:.60}")
    bare = _QUOTED.sub('""', text)
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
