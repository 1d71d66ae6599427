"""Parser of grammars in GBNF, the notation of llama.cpp."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from quire.errors import GrammarError
from quire_structured_output.gbnf.gbnf_grammar import (
    ROOT,
    Characters,
    Grammar,
    Reference,
    Repeat,
    Sequence,
)
from quire_structured_output.schemas.ecma_regex import ANYTHING, LAST, complement, merged

MAX_DEPTH = 200  # of groups
_TOKEN = re.compile(
    r"(?P<blank>\s+|#[^\n]*)|(?P<name>[A-Za-z0-9_-]+)|(?P<defines>::=)"
    r'|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<chars>\[(?:[^\]\\]|\\.)*\])'
    r"|(?P<times>[*+?]|\{\d{1,10}(?:,\d{0,10})?\})|(?P<bracket>[()])|(?P<or>\|)|(?P<any>\.)",
    re.DOTALL,
)
_CHARACTER = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\([\s\S])|([\s\S])"
)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}
_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_Token = tuple[str, str, int]  # kind, text, position


def parse_gbnf(text: str) -> Grammar:
    """Return the nodes of a grammar; linear in its length.

    Raises:
        GrammarError: It is not valid, has no rule `root`, or uses a rule that it does not define.
    """
    tokens = list(_tokens(text))
    places = [i for i, token in enumerate(tokens) if token[0] == "defines"]
    if not places or places[0] != 1:
        raise _invalid(text, 0, "it does not begin with a rule 'name ::= ...'")
    names: set[str] = set()
    for i in places:
        kind, name, position = tokens[i - 1]
        if kind != "name" or name in names:
            raise _invalid(text, position, f"{name!r:.80} is not the name of a new rule")
        names.add(name)
    if ROOT not in names:
        raise GrammarError(f"the grammar has no rule {ROOT!r}, where every text begins")
    grammar = Grammar()
    ends = [*(i - 1 for i in places[1:]), len(tokens)]
    for i, end in zip(places, ends, strict=True):
        body = _Body(text, grammar, names).parse(tokens[i + 1 : end])
        grammar.rules[tokens[i - 1][1]] = body
    return grammar


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _invalid(text, position, f"{text[position : position + 20]!r} is not understood")
        if found.lastgroup != "blank":
            yield str(found.lastgroup), found[0], position
        position = found.end()


@dataclass(slots=True)
class _Group:
    """A group that is open: its finished alternatives, and the items of the last one."""

    options: list[int] = field(default_factory=list)
    items: list[int] = field(default_factory=list)


class _Body:
    """Parser of what is behind a `::=`."""

    def __init__(self, text: str, grammar: Grammar, names: set[str]) -> None:
        self._text = text
        self._grammar = grammar
        self._names = names
        self._open = [_Group()]
        self._is_item = False  # whether something is there that can be repeated

    def parse(self, tokens: list[_Token]) -> int:
        """Return the node of the body.

        Raises:
            GrammarError: It is not valid.
        """
        for kind, token, position in tokens:
            if kind == "or":
                self._end_alternative()
            elif kind == "bracket":
                self._bracket(token, position)
            elif kind == "times":
                self._repeat(token, position)
            else:
                self._open[-1].items.append(self._atom(kind, token, position))
            self._is_item = kind not in ("or", "times") and token != "("
        if len(self._open) > 1:
            raise _invalid(self._text, len(self._text), "a group is not closed")
        return self._close()

    def _end_alternative(self) -> None:
        group = self._open[-1]
        group.options.append(self._grammar.sequence(group.items))
        group.items = []

    def _close(self) -> int:
        self._end_alternative()
        return self._grammar.alternatives(self._open.pop().options)

    def _bracket(self, token: str, position: int) -> None:
        if token == "(":
            self._open.append(_Group())
        if not 1 < len(self._open) <= MAX_DEPTH + 1:
            why = f"groups are not closed, or nested more than {MAX_DEPTH} deep"
            raise _invalid(self._text, position, why)
        if token == ")":
            group = self._close()
            self._open[-1].items.append(group)

    def _repeat(self, token: str, position: int) -> None:
        if not self._is_item:
            why = f"nothing is before the {token!r} that can be repeated"
            raise _invalid(self._text, position, why)
        low, high = _TIMES[token] if token in _TIMES else _bounds(token)
        if high is not None and high < low:
            raise _invalid(self._text, position, f"the numbers of {token} are out of order")
        items = self._open[-1].items
        is_empty = high == 0 or self._grammar.nodes[items[-1]] == Sequence()
        items[-1] = self._grammar.add(Sequence() if is_empty else Repeat(items[-1], low, high))

    def _atom(self, kind: str, token: str, position: int) -> int:
        if kind == "name":
            if token not in self._names:
                raise _invalid(self._text, position, f"the rule {token!r:.80} is not defined")
            return self._grammar.add(Reference(token))
        if kind == "text":
            codes = [code for code, _ in _characters(self._text, token[1:-1], position)]
            return self._grammar.text("".join(map(chr, codes)))
        if kind == "chars":
            return self._grammar.add(_class(self._text, token[1:-1], position))
        return self._grammar.add(Characters(merged(ANYTHING)))


def _bounds(token: str) -> tuple[int, int | None]:
    low, comma, high = token[1:-1].partition(",")
    return int(low), int(high) if high else None if comma else int(low)


def _class(text: str, quoted: str, position: int) -> Characters:
    is_negated = quoted.startswith("^")
    chars = list(_characters(text, quoted.removeprefix("^"), position))
    ranges, i = [], 0
    while i < len(chars):
        low = high = chars[i][0]
        if i + 2 < len(chars) and chars[i + 1] == (ord("-"), False):
            high, i = chars[i + 2][0], i + 2
        if high < low:
            raise _invalid(text, position, f"a range of [{quoted:.60}] is out of order")
        ranges.append((low, high))
        i += 1
    found = complement(tuple(ranges)) if is_negated else merged(tuple(ranges))
    if not found:
        raise _invalid(text, position, f"no character is in [{quoted:.60}]")
    return Characters(found)


def _characters(text: str, quoted: str, position: int) -> Iterator[tuple[int, bool]]:
    """Yield the code points of what is between quotes or brackets, and whether each is escaped."""
    for found in _CHARACTER.finditer(quoted):
        code, escaped = next(filter(None, found.groups()[:3]), None), found[4]
        if escaped is not None and escaped.isalnum() and escaped not in _CONTROLS:
            raise _invalid(text, position, f"the escape \\{escaped} has no meaning")
        if code is None:
            yield ord(_CONTROLS.get(escaped, escaped) if escaped else found[5]), bool(escaped)
        elif int(code, 16) > LAST or 0xD800 <= int(code, 16) < 0xE000:
            raise _invalid(text, position, f"{found[0]} is no character")
        else:
            yield int(code, 16), True


def _invalid(text: str, position: int, why: str) -> GrammarError:
    line = text.count("\n", 0, position) + 1
    return GrammarError(f"the GBNF grammar is not valid at line {line}: {why}")
