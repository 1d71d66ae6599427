"""Checks of a client's context-free grammar, in Lark's dialect or in GBNF.

llguidance's dialect of Lark has directives for other things than grammars: options of its own,
special tokens by name or id, files to import, and attributes that sample or stop. A client's
grammar is about text, so they are refused by name.
"""

import re

from quire.errors import GrammarError

MAX_GRAMMAR_LENGTH = 64 * 1024
MAX_DEPTH = 200  # of brackets
_DIRECTIVES = ("%llguidance", "%import", "%lark", "%regex", "%override", "%extend", "%declare")
_QUOTED = re.compile(
    r'"(?:[^"\\\n]|\\.)*"i?|/(?![/*])(?:[^/\\\n]|\\.)+/[imslux]*|//[^\n]*|#[^\n]*', re.DOTALL
)
_ATTRIBUTES = re.compile(r"^\s*[?!]?[A-Za-z_]\w*\s*\[([^\]]*)\]\s*:", re.MULTILINE)


def is_gbnf(text: str) -> bool:
    """Return whether a grammar is in GBNF: its rules are defined by `::=`."""
    return "::=" in _QUOTED.sub('""', text)


def check_lark(text: str) -> None:
    """Check a grammar in Lark's dialect; linear in its length.

    Raises:
        GrammarError: It is empty, too long, nested too deeply, or has a directive or a special
            token.
    """
    if not text.strip():
        raise GrammarError("the grammar is empty; it needs a rule 'start'")
    if len(text) > MAX_GRAMMAR_LENGTH:
        raise GrammarError(
            f"the grammar has {len(text)} characters; at most {MAX_GRAMMAR_LENGTH} are allowed"
        )
    bare = _QUOTED.sub('""', text)
    for directive in _DIRECTIVES:
        if directive in bare:
            raise GrammarError(f"the grammar has the directive {directive}, which is not supported")
    if "<" in bare:
        raise GrammarError("the grammar has a special token ('<'), which is not supported")
    if found := _ATTRIBUTES.search(bare):
        raise GrammarError(f"the grammar has a rule with [{found[1]:.60}], which is not supported")
    if not re.search(r"^\s*[?!]?start\s*(?:\.\d+)?\s*:", bare, re.MULTILINE):
        raise GrammarError("the grammar has no rule 'start', where every text begins")
    depth = 0
    for char in bare:
        depth += (char in "([{") - (char in ")]}")
        if depth > MAX_DEPTH:
            raise GrammarError(f"the grammar has brackets nested more than {MAX_DEPTH} deep")
