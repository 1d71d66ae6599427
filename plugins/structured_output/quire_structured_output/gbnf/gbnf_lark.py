"""Translation of a grammar in GBNF to llguidance's dialect of Lark.

GBNF has no lexer: "a" [a-z] | "ab" "c" allows "ab". A lexer that takes the longest text would read
"ab" as the beginning of the second alternative. So only what `gbnf_terminals` has shown to be safe
is written as one terminal; the rest is written character by character.
"""

from collections.abc import Sequence as List

from quire_structured_output.gbnf.gbnf_grammar import (
    ROOT,
    Alternatives,
    Characters,
    Grammar,
    Reference,
    Repeat,
    Sequence,
)
from quire_structured_output.gbnf.gbnf_regular import characters_regex
from quire_structured_output.gbnf.gbnf_syntax import parse_gbnf
from quire_structured_output.gbnf.gbnf_terminals import with_terminals
from quire_structured_output.schemas.ecma_regex import ANYTHING, merged, times

MAX_BRACKETS = 8  # in each other; llguidance allows about 30
_ENDED, _FOLLOWED, _BEYOND = " ended", " followed", " beyond"  # names that no client can write


def lark_of_gbnf(text: str, prefix: str = "", ends: List[str] = ()) -> str:
    """Return the grammar in Lark, with the rule `start` for `root`.

    Args:
        text: Grammar in GBNF.
        prefix: Beginning of the names of all rules.
        ends: Texts of which one ends what the grammar allows, before any other text; none:
            nothing follows.

    Raises:
        GrammarError: It is not valid, has no rule `root`, or uses a rule that it does not define.
    """
    grammar = parse_gbnf(text)
    if not ends:
        grammar, terminals = with_terminals(grammar, ROOT)
        return written(grammar, grammar.rules[ROOT], terminals, prefix)
    _add_ends(grammar, ends)
    grammar, terminals = with_terminals(grammar, _FOLLOWED)
    return written(grammar, grammar.parts(grammar.rules[_FOLLOWED])[0], terminals, prefix)


def _add_ends(grammar: Grammar, ends: List[str]) -> None:
    """Add rules for the ended grammar, and for any characters beyond it.

    What is beyond is written elsewhere. Its rule is not regular, so it is in no terminal here.
    """
    end = grammar.alternatives([grammar.text(each) for each in ends])
    grammar.rules[_ENDED] = grammar.sequence([grammar.add(Reference(ROOT)), end])
    beyond = [grammar.add(Reference(_BEYOND)) for _ in range(2)]
    characters = grammar.sequence([grammar.add(Characters(merged(ANYTHING))), *beyond])
    grammar.rules[_BEYOND] = grammar.alternatives([characters, grammar.sequence([])])
    parts = [grammar.add(Reference(_ENDED)), grammar.add(Reference(_BEYOND))]
    grammar.rules[_FOLLOWED] = grammar.sequence(parts)


def written(grammar: Grammar, start: int, terminals: dict[int, str], prefix: str = "") -> str:
    """Return a grammar in Lark.

    Args:
        grammar: The grammar.
        start: Node that its rule `start` is.
        terminals: What to write for each part that is one terminal; the others are written in
            single characters.
        prefix: Beginning of the names of all rules.
    """
    return _Writer(grammar, start, terminals, prefix).write()


class _Writer:
    def __init__(
        self, grammar: Grammar, start: int, terminals: dict[int, str], prefix: str
    ) -> None:
        self._grammar = grammar
        self._start = start
        self._terminals = terminals
        self._prefix = prefix
        self._names = {start: f"{prefix}start"}  # by node of a rule's body
        self._texts: dict[int, str] = {}  # of each part
        self._depths: dict[int, int] = {}  # of brackets in each text

    def write(self) -> str:
        """Return the rules, one a line."""
        reached = self._grammar.reached(self._start, self._terminals.keys())
        for i in reached:
            if isinstance(self._grammar.nodes[i], Reference) and i not in self._terminals:
                self._name(self._grammar.uses(i)[0])
        for i in reached:
            self._write_part(i)
        bodies = [(name, self._texts[body]) for body, name in self._names.items()]
        return "\n".join(f'{name}: "" {text}' for name, text in bodies)

    def _name(self, body: int) -> str:
        return self._names.setdefault(body, f"{self._prefix}rule{len(self._names)}")

    def _write_part(self, index: int) -> None:
        if index in self._terminals:
            self._texts[index], self._depths[index] = self._terminals[index], 0
            return
        parts = self._grammar.parts(index)
        for part in parts:
            if self._depths[part] >= MAX_BRACKETS:
                self._name(part)
        self._depths[index] = 1 + max((self._depths_of(part) for part in parts), default=-1)
        self._texts[index] = self._expression(index)

    def _depths_of(self, part: int) -> int:
        return 0 if part in self._names else self._depths[part]

    def _part(self, index: int) -> str:
        return self._names.get(index) or self._texts[index]

    def _expression(self, index: int) -> str:
        match self._grammar.nodes[index]:
            case Characters(ranges):
                return f"/{characters_regex(ranges)}/"
            case Reference():
                return self._names[self._grammar.uses(index)[0]]
            case Sequence(items):
                return f"({' '.join(map(self._part, items))})" if items else '""'
            case Alternatives(options):
                return f"({' | '.join(map(self._part, options))})"
            case Repeat(what, low, high):
                return f"({self._part(what)}){times(low, high)}"
