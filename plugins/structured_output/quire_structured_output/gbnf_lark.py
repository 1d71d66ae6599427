"""Translation of a grammar in GBNF to llguidance's dialect of Lark.

GBNF has no lexer: "a" [a-z] | "ab" "c" allows "ab". A lexer that takes the longest text would read
"ab" as the beginning of the second alternative. So only what `gbnf_terminals` has shown to be safe
is written as one terminal; the rest is written character by character.
"""

from collections.abc import Sequence as List

from quire_structured_output.ecma_regex import ANYTHING, merged, times
from quire_structured_output.gbnf_grammar import (
    ROOT,
    Alternatives,
    Characters,
    Grammar,
    Reference,
    Repeat,
    Sequence,
)
from quire_structured_output.gbnf_regular import characters_regex
from quire_structured_output.gbnf_syntax import parse_gbnf
from quire_structured_output.gbnf_terminals import with_terminals

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
    reached = grammar.reached(start, terminals.keys())
    bodies = {f"{prefix}start": start}
    names = {rule: f"{prefix}start" for rule, body in grammar.rules.items() if body == start}
    for i in reached:
        node = grammar.nodes[i]
        if isinstance(node, Reference) and i not in terminals:
            name = names.setdefault(node.rule, f"{prefix}rule{len(names)}")
            bodies[name] = grammar.rules[node.rule]
    texts: dict[int, str] = {}
    for i in reached:
        texts[i] = terminals[i] if i in terminals else _expression(grammar, i, texts, names)
    return "\n".join(f'{name}: "" {texts[body]}' for name, body in bodies.items())


def _expression(grammar: Grammar, index: int, texts: dict[int, str], names: dict[str, str]) -> str:
    match grammar.nodes[index]:
        case Characters(ranges):
            return f"/{characters_regex(ranges)}/"
        case Reference(rule):
            return names[rule]
        case Sequence(items):
            return f"({' '.join(texts[item] for item in items)})" if items else '""'
        case Alternatives(options):
            return f"({' | '.join(texts[option] for option in options)})"
        case Repeat(what, low, high):
            return f"({texts[what]}){times(low, high)}"
