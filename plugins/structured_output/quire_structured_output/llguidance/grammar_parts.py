"""Parts of a grammar whose texts follow one another, and whether a lexer reads them exactly.

llguidance cuts a text into terminals, and takes the longest one. So a grammar is read exactly only
if a terminal that is complete cannot go on with what may follow it, and if of several terminals
that may come next none is the beginning of another. A combination of parts for which that cannot
be shown is refused. Parts that are terminals themselves are joined to one, which needs no proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.errors import GrammarError
from quire_structured_output.llguidance.lark_writing import literal

MAX_BEGINNING = 128  # characters of a beginning that are compared
ANY_TEXT = "/(?s:.)*/"
SOME_TEXT = "/(?s:.)+/"
ANYTHING = ("",)  # beginnings of a part about which nothing is known


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a grammar.

    Attributes:
        text: Expression in Lark.
        beginnings: Texts of which each text of the part that is not empty has one at its
            beginning; the empty text stands for any.
        more: Texts with which the part, or its last terminal, may go on where it could end.
        may_be_empty: Whether it allows the empty text.
        is_terminal: Whether the expression is one of a terminal: it has no rule and no JSON.
    """

    text: str
    beginnings: tuple[str, ...]
    more: tuple[str, ...] = ()
    may_be_empty: bool = False
    is_terminal: bool = False


def constant(text: str) -> Part:
    """Return the part that is one text."""
    if not text:
        return Part('""', (), may_be_empty=True, is_terminal=True)
    return Part(literal(text), (text[:MAX_BEGINNING],), is_terminal=True)


def pattern(expression: str) -> Part:
    """Return the part that a regex between slashes matches."""
    return Part(expression, ANYTHING, ANYTHING, may_be_empty=True, is_terminal=True)


def one_of(parts: Sequence[Part], where: str) -> Part:
    """Return alternatives.

    Raises:
        GrammarError: They may begin alike, and are not all terminals.
    """
    terminals = [part for part in parts if part.is_terminal]
    if terminals:
        parts = [*(part for part in parts if not part.is_terminal), _joined(terminals)]
    if len(parts) == 1:
        return parts[0]
    if (clash := _clash(part.beginnings for part in parts)) is not None:
        raise GrammarError(
            f"{where} has parts that may begin alike ({clash!r:.80}), so that a lexer cannot tell "
            "them apart; let each begin with a text of its own"
        )
    return Part(
        f"({' | '.join(part.text for part in parts)})",
        tuple(each for part in parts for each in part.beginnings),
        tuple(each for part in parts for each in part.more),
        may_be_empty=any(part.may_be_empty for part in parts),
    )


def _joined(terminals: Sequence[Part]) -> Part:
    """Return the terminal for one of several terminals."""
    if len(terminals) == 1:
        return terminals[0]
    is_ended = all(not part.more and not part.may_be_empty for part in terminals)
    is_ended = is_ended and _clash(part.beginnings for part in terminals) is None
    return Part(
        f"({' | '.join(part.text for part in terminals)})",
        tuple(dict.fromkeys(each for part in terminals for each in part.beginnings)),
        () if is_ended else ANYTHING,
        may_be_empty=any(part.may_be_empty for part in terminals),
        is_terminal=True,
    )


def sequence(parts: Sequence[Part], where: str) -> Part:
    """Return parts one after another.

    Raises:
        GrammarError: One may go on with the text with which the next one begins.
    """
    found = constant("")
    for part in parts:
        found = _pair(found, part, where)
    return found


def _pair(first: Part, second: Part, where: str) -> Part:
    if '""' in (first.text, second.text):
        return second if first.text == '""' else first
    is_terminal = first.is_terminal and second.is_terminal
    more = second.more
    if second.may_be_empty:
        more += first.more + second.beginnings
    if is_terminal:
        more = ANYTHING if first.more or first.may_be_empty else more
    else:
        follows = first.more + (first.beginnings if first.may_be_empty else ())
        if (clash := _clash([follows, second.beginnings])) is not None:
            raise GrammarError(
                f"{where} has a part that may go on with the text with which the next one begins "
                f"({clash!r:.80}), so that a lexer cannot tell where it ends; put a text between "
                "them that cannot be in the first one"
            )
    beginnings = first.beginnings + (second.beginnings if first.may_be_empty else ())
    return Part(
        f"({first.text} {second.text})",
        beginnings,
        tuple(dict.fromkeys(more)),
        first.may_be_empty and second.may_be_empty,
        is_terminal,
    )


def until(content: str, events: Iterable[str], ends: Iterable[str]) -> Part:
    """Return the terminal for a content and one of `ends`, with no event before.

    Args:
        content: Terminal of the content.
        events: Texts of which the content and the end have none, but for the end itself.
        ends: The events that end the content.
    """
    whole = f"({content} {words(ends)})"
    text = f"({whole} & ~({ANY_TEXT} {words(events)} {SOME_TEXT}))"
    return Part(text, ANYTHING, is_terminal=True)


def without(excluded: Sequence[str]) -> str:
    """Return the terminal for texts that have none of some words in them."""
    if not excluded:
        return ANY_TEXT
    return f"({ANY_TEXT} & ~({ANY_TEXT} {words(excluded)} {ANY_TEXT}))"


def words(texts: Iterable[str]) -> str:
    """Return the terminal for one of some texts."""
    return f"({' | '.join(map(literal, texts))})"


def _clash(groups: Iterable[Iterable[str]]) -> str | None:
    """Return a text with which texts of two groups begin; None: there is none.

    Texts clash if one is the beginning of the other.
    """
    seen: set[str] = set()  # texts of earlier groups
    beginnings: set[str] = set()  # and all their beginnings
    for group in groups:
        own = set(group)
        for text in own:
            if text in beginnings:
                return text
            for length in range(len(text) + 1):
                if text[:length] in seen:
                    return text[:length]
        seen |= own
        beginnings |= {text[:length] for text in own for length in range(len(text) + 1)}
    return None
