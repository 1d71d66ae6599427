"""A grammar in GBNF as numbered nodes: the rules, and the parts of their bodies.

Each part has a higher number than its own parts, so that passes over a grammar are loops, however
deep a client nests its groups.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from quire_structured_output.schemas.ecma_regex import Ranges

ROOT = "root"


@dataclass(frozen=True, slots=True)
class Characters:
    """One character of sorted ranges."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts one after another; none: the empty text."""

    items: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One of some parts."""

    options: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part `low` to `high` times; None: no maximum."""

    what: int
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Reference:
    """What a rule allows."""

    rule: str


Node = Characters | Sequence | Alternatives | Repeat | Reference


class Grammar:
    """Nodes of a grammar.

    Attributes:
        nodes: All parts, each behind its own parts.
        rules: Node of each rule's body.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.rules: dict[str, int] = {}

    def add(self, node: Node) -> int:
        """Add a node, and return its number."""
        self.nodes.append(node)
        return len(self.nodes) - 1

    def sequence(self, items: list[int]) -> int:
        """Return the number of parts one after another."""
        return items[0] if len(items) == 1 else self.add(Sequence(tuple(items)))

    def alternatives(self, options: list[int]) -> int:
        """Return the number of one of some parts."""
        return options[0] if len(options) == 1 else self.add(Alternatives(tuple(options)))

    def text(self, text: str) -> int:
        """Return the number of a literal text."""
        return self.sequence([self.add(Characters(((ord(char), ord(char)),))) for char in text])

    def parts(self, index: int) -> tuple[int, ...]:
        """Return the parts that a node has itself, without the bodies of rules."""
        match self.nodes[index]:
            case Sequence(parts) | Alternatives(parts):
                return parts
            case Repeat(what):
                return (what,)
        return ()

    def uses(self, index: int) -> tuple[int, ...]:
        """Return the nodes that a node uses: its parts, or the body of its rule."""
        node = self.nodes[index]
        return (self.rules[node.rule],) if isinstance(node, Reference) else self.parts(index)

    def reached(self, index: int, ends: Collection[int] = ()) -> list[int]:
        """Return the nodes that a node uses, directly or not, in order, and the node itself.

        Args:
            index: The node.
            ends: Nodes whose own parts are not followed.
        """
        found = {index}
        pending = [index]
        while pending:
            current = pending.pop()
            if current not in ends:
                new = set(self.uses(current)) - found
                found |= new
                pending += new
        return sorted(found)
