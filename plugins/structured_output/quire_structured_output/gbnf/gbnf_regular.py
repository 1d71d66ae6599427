"""Parts of a grammar that are regular, as expressions for a lexer and as automata."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from quire_structured_output.gbnf.gbnf_automaton import Automaton, Fragment
from quire_structured_output.gbnf.gbnf_grammar import (
    Alternatives,
    Characters,
    Grammar,
    Reference,
    Repeat,
    Sequence,
)
from quire_structured_output.gbnf.gbnf_work import Work
from quire_structured_output.schemas.ecma_regex import Ranges, times

MAX_POSITIONS = 400  # characters of an expression, repetitions written out
MAX_NESTING = 50


@dataclass(frozen=True, slots=True)
class Shape:
    """Measures of a regular expression; without positions it is the empty text."""

    num_positions: int
    nesting: int
    is_nullable: bool


def regular_shapes(grammar: Grammar) -> dict[int, Shape]:
    """Return the parts that are regular expressions of bounded size: no rule in them recurses."""
    users: dict[int, list[int]] = defaultdict(list)
    num_missing: dict[int, int] = {}
    ready: list[int] = []
    for i in range(len(grammar.nodes)):
        used = grammar.uses(i)
        num_missing[i] = len(used)
        for each in used:
            users[each].append(i)
        if not used:
            ready.append(i)
    shapes: dict[int, Shape] = {}
    while ready:
        i = ready.pop()
        shape = _shape(grammar, i, shapes)
        if shape.num_positions <= MAX_POSITIONS and shape.nesting <= MAX_NESTING:
            shapes[i] = shape
            for user in users[i]:
                num_missing[user] -= 1
                if not num_missing[user]:
                    ready.append(user)
    return shapes


def _shape(grammar: Grammar, index: int, shapes: dict[int, Shape]) -> Shape:
    node = grammar.nodes[index]
    if isinstance(node, Characters):
        return Shape(1, 1, is_nullable=False)
    used = [shapes[each] for each in grammar.uses(index)]
    num_positions = sum(shape.num_positions for shape in used)
    nesting = 1 + max((shape.nesting for shape in used), default=0)
    is_nullable = all(shape.is_nullable for shape in used)
    match node:
        case Alternatives():
            is_nullable = any(shape.is_nullable for shape in used)
        case Repeat(_, low, high):
            num_positions *= max(low, high or 1)
            is_nullable = is_nullable or low == 0
    return Shape(num_positions, nesting, is_nullable)


class RegularParts:
    """Expressions and automata of the regular parts of a grammar.

    Args:
        grammar: The grammar.
        shapes: Its regular parts.
        work: Work to charge.
    """

    def __init__(self, grammar: Grammar, shapes: dict[int, Shape], work: Work) -> None:
        self._grammar = grammar
        self._shapes = shapes
        self._work = work

    def regex(self, index: int) -> str:
        """Return the expression for what the part allows and the empty text does not."""
        return self._without_empty(index)

    def automaton(self, index: int) -> Automaton:
        """Return the automaton of a part's positions."""
        automaton = Automaton(self._work)
        automaton.ends_with(self._fragment(automaton, index))
        return automaton

    def _regex(self, index: int) -> str:
        self._work.charge(1)
        match self._grammar.nodes[index]:
            case Characters(ranges):
                return characters_regex(ranges)
            case Reference(rule):
                return self._regex(self._grammar.rules[rule])
            case Sequence(items):
                return "".join(map(self._regex, items))
            case Alternatives(options):
                return f"(?:{'|'.join(map(self._regex, options))})"
            case Repeat(what, low, high):
                return self._repeated(what, low, high)

    def _without_empty(self, index: int) -> str:
        if not self._shapes[index].is_nullable:
            return self._regex(index)
        match self._grammar.nodes[index]:
            case Reference(rule):
                return self._without_empty(self._grammar.rules[rule])
            case Alternatives(options):
                return f"(?:{'|'.join(self._without_empty(i) for i in self._some(options))})"
            case Repeat(what, low, high):
                return self._repeated(what, max(low, 1), high)
            case Sequence(items):
                rests = [items[i:] for i in range(len(items))]
                return f"(?:{'|'.join(map(self._begun, self._some_rests(rests)))})"
        raise ValueError("a character is not empty")

    def _some(self, options: tuple[int, ...]) -> list[int]:
        return [each for each in options if self._shapes[each].num_positions]

    def _some_rests(self, rests: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [rest for rest in rests if self._shapes[rest[0]].num_positions]

    def _begun(self, items: tuple[int, ...]) -> str:
        """Return the expression of a sequence whose first part is not empty."""
        return self._without_empty(items[0]) + "".join(map(self._regex, items[1:]))

    def _repeated(self, what: int, low: int, high: int | None) -> str:
        shape = self._shapes[what]
        if not shape.num_positions:
            return ""
        if shape.is_nullable:
            low = 0
        return f"(?:{self._without_empty(what)}){times(low, high)}"

    def _fragment(self, automaton: Automaton, index: int) -> Fragment:
        match self._grammar.nodes[index]:
            case Characters(ranges):
                return automaton.characters(ranges)
            case Reference(rule):
                return self._fragment(automaton, self._grammar.rules[rule])
            case Sequence(items):
                return automaton.sequence([self._fragment(automaton, each) for each in items])
            case Alternatives(options):
                return automaton.alternatives([self._fragment(automaton, i) for i in options])
            case Repeat(what, low, high):
                copies = max(low, high or 1)
                if not self._shapes[what].num_positions:
                    copies = 1
                parts = [self._fragment(automaton, what) for _ in range(copies)]
                return automaton.repeated(parts, low, is_open=high is None)


def characters_regex(ranges: Ranges) -> str:
    """Return the expression for one character of some ranges."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return _character(ranges[0][0])
    written = (
        _character(low) if low == high else f"{_character(low)}-{_character(high)}"
        for low, high in ranges
    )
    return f"[{''.join(written)}]"


def _character(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"
