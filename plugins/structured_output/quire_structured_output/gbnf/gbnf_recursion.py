"""Linear recursion as repetition: `x ::= a x | b` allows what `a* b` does (Arden's lemma).

A rule that uses itself only at the end of its alternatives, or only at their beginning, is written
anew, so that what is regular in a grammar can be seen from its form.
"""

from typing import NamedTuple

from quire_structured_output.gbnf.gbnf_grammar import (
    Alternatives,
    Grammar,
    Reference,
    Repeat,
    Sequence,
)


class _Linear(NamedTuple):
    """A part that uses its rule: what is beside the rule, and what does not use it."""

    again: int
    done: int | None


def solve_linear_recursion(grammar: Grammar) -> None:
    """Replace the bodies of rules that are linear in themselves."""
    for rule, body in list(grammar.rules.items()):
        for is_left in (False, True):
            found = _solved(grammar, rule, body, is_left)
            if found is not None:
                grammar.rules[rule] = found
                break


def _solved(grammar: Grammar, rule: str, body: int, is_left: bool) -> int | None:
    """Return the body without recursion; None: there is none, or it is not linear."""
    parts: dict[int, _Linear] = {}
    for i in _tree(grammar, body):
        if grammar.nodes[i] == Reference(rule):
            parts[i] = _Linear(grammar.add(Sequence()), None)
        elif any(part in parts for part in grammar.parts(i)):
            linear = _linear(grammar, i, parts, is_left)
            if linear is None:
                return None
            parts[i] = linear
    if body not in parts:
        return None
    again, done = parts[body]
    if done is None:  # no text is finite
        return None
    loop = grammar.add(Repeat(again, 0, None))
    return _joined(grammar, [loop], done, is_left)


def _tree(grammar: Grammar, body: int) -> list[int]:
    """Return the nodes of one rule's body, in order."""
    found, pending = [], [body]
    while pending:
        found.append(pending.pop())
        pending += grammar.parts(found[-1])
    return sorted(found)


def _linear(
    grammar: Grammar, index: int, parts: dict[int, _Linear], is_left: bool
) -> _Linear | None:
    match grammar.nodes[index]:
        case Alternatives(options):
            again = [parts[each].again for each in options if each in parts]
            done = [parts[each].done if each in parts else each for each in options]
            rest = [each for each in done if each is not None]
            return _Linear(
                grammar.alternatives(again), grammar.alternatives(rest) if rest else None
            )
        case Repeat(what, 0, 1):
            again_once, done_once = parts[what]
            empty = grammar.add(Sequence())
            return _Linear(
                again_once,
                empty if done_once is None else grammar.alternatives([done_once, empty]),
            )
        case Sequence(items):
            own, others = (items[0], items[1:]) if is_left else (items[-1], items[:-1])
            if own not in parts or any(each in parts for each in others):
                return None
            again_end, done_end = parts[own]
            return _Linear(
                _joined(grammar, list(others), again_end, is_left),
                None if done_end is None else _joined(grammar, list(others), done_end, is_left),
            )
    return None


def _joined(grammar: Grammar, others: list[int], own: int, is_left: bool) -> int:
    """Return some parts and the one at the end, or with it at the beginning."""
    return grammar.sequence([own, *others] if is_left else [*others, own])
