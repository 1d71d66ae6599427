"""Stop regexes: search for the end of the first match in a text that arrives in pieces.

The states of a nondeterministic automaton advance together (K. Thompson, "Regular Expression Search
Algorithm", CACM 11(6), 1968), so a character costs at most one visit of each state, whatever the
regex. States are grouped by the first position where a match that has reached them may have begun:
from there on text is held back. Which groups follow which is remembered, so that a character
usually costs one look-up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from quire.errors import InvalidRequestError
from quire.frontend.text.stop_regex_parser import (
    MAX_STATES,
    UNBOUNDED,
    Alternatives,
    Assertion,
    Character,
    Node,
    Repetition,
    parse_stop_regex,
    refused,
)

MAX_HELD = 512  # characters; of a longer match the first ones are returned
MAX_DECISIONS = 4096  # about single characters, that are remembered
MAX_REMEMBERED = 2**14  # groups in the steps that an automaton remembers; 100 bytes each


class Context(NamedTuple):
    """What assertions ask about a position.

    Attributes:
        is_start: Whether it is the start of the text.
        is_line_start: Whether it is the start of a line.
        is_line_end: Whether it is the end of a line; False while the next character is unknown.
        is_boundary: Whether a word begins or ends here; None while that is unknown.
    """

    is_start: bool
    is_line_start: bool
    is_line_end: bool
    is_boundary: bool | None

    def satisfies(self, kind: str) -> bool:
        """Whether an assertion holds here; one that cannot be decided yet does not."""
        if kind in "bB":
            return self.is_boundary is (kind == "b")
        return {"A": self.is_start, "^": self.is_line_start, "$": self.is_line_end}[kind]


NOWHERE = Context(False, False, False, None)  # of regexes without assertions


class Step(NamedTuple):
    """A step over one character.

    Attributes:
        groups: Groups of states after it.
        sources: For each of these the index of the group before it that it comes from; that of a
            match which begins at the character is behind the last.
    """

    groups: "Groups"
    sources: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Groups:
    """Disjoint groups of states, in the order in which their matches began.

    Attributes:
        states: States of each group.
        steps: Steps that were taken from here.
        ends: For each context the index of the first group in which a match ends; None: none.
    """

    states: tuple[tuple[int, ...], ...] = ()
    steps: dict[tuple[str, Context], Step] = field(default_factory=dict)
    ends: dict[Context, int | None] = field(default_factory=dict)


@dataclass(slots=True)
class Automaton:
    """The automaton of one regex.

    Attributes:
        pattern: The regex.
        tests: For each state the character that it takes, the assertion that it makes, or None.
        targets: States that follow each state.
        start: First state.
        end: State at the end of the regex.
        has_assertions: Whether it asks about the characters around a position.
        looks_ahead: Whether an assertion depends on the next character.
    """

    pattern: str
    tests: list[Character | Assertion | None] = field(default_factory=list)
    targets: list[list[int]] = field(default_factory=list)
    start: int = 0
    end: int = 0
    has_assertions: bool = False
    looks_ahead: bool = False
    _epsilons: dict[Context, list[list[int]]] = field(default_factory=dict)
    _decisions: dict[tuple[int, str], bool] = field(default_factory=dict)
    _groups: dict[tuple[tuple[int, ...], ...], Groups] = field(default_factory=dict)
    _num_remembered: int = 0

    def add(self, test: Character | Assertion | None, *targets: int) -> int:
        """Add a state, and return its index."""
        self.tests.append(test)
        self.targets.append(list(targets))
        return len(self.tests) - 1

    def step(self, groups: Groups, character: str, context: Context) -> Step:
        """Return the step over a character, at which another match may begin."""
        found = groups.steps.get((character, context))
        if found is None:
            found = self._step(groups, character, context)
            if self._num_remembered >= MAX_REMEMBERED:
                self._groups, self._num_remembered = {}, 0
            self._num_remembered += 2 + 2 * len(found.sources)
            groups.steps[character, context] = found
        return found

    def first_end(self, groups: Groups, context: Context) -> int | None:
        """Return the index of the first group in which a match ends at a position."""
        if context not in groups.ends:
            reached = self._spread(groups.states, context)
            groups.ends[context] = next((i for i, group in reached if self.end in group), None)
        return groups.ends[context]

    def takes(self, state: int, character: str) -> bool:
        """Whether a state takes a character."""
        decision = self._decisions.get((state, character))
        if decision is None:
            test = self.tests[state]
            decision = isinstance(test, Character) and test.test.fullmatch(character) is not None
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[state, character] = decision
        return decision

    def can_be_empty(self) -> bool:
        """Whether the regex matches an empty text somewhere."""
        truths = product((False, True), repeat=4)
        groups = Groups(((self.start,),))
        return any(self.first_end(groups, Context(*each)) is not None for each in truths)

    def _step(self, groups: Groups, character: str, context: Context) -> Step:
        known: set[int] = set()
        states, sources = [], []
        for source, reached in self._spread((*groups.states, (self.start,)), context):
            targets = {self.targets[s][0] for s in reached if self.takes(s, character)} - known
            if targets:
                known |= targets
                states.append(tuple(sorted(targets)))
                sources.append(source)
        key = tuple(states)
        return Step(self._groups.setdefault(key, Groups(key)), tuple(sources))

    def _spread(
        self, states: tuple[tuple[int, ...], ...], context: Context
    ) -> Iterator[tuple[int, list[int]]]:
        """Yield each group with the states that it is the first to reach without a character."""
        epsilons = self._epsilons_at(context)
        seen: set[int] = set()
        for index, group in enumerate(states):
            reached, queue = [], list(group)
            while queue:
                current = queue.pop()
                if current not in seen:
                    seen.add(current)
                    reached.append(current)
                    queue += epsilons[current]
            yield index, reached

    def _epsilons_at(self, context: Context) -> list[list[int]]:
        """Return the states that follow each state without a character."""
        found = self._epsilons.get(context)
        if found is None:
            pairs = zip(self.tests, self.targets, strict=True)
            found = [targets if _is_free(test, context) else [] for test, targets in pairs]
            self._epsilons[context] = found
        return found


def _is_free(test: Character | Assertion | None, context: Context) -> bool:
    """Whether a state is left without a character."""
    if isinstance(test, Character):
        return False
    return test is None or context.satisfies(test.kind)


@lru_cache(maxsize=64)
def compile_stop_regexes(patterns: tuple[str, ...]) -> tuple[Automaton, ...]:
    """Return the automata of a request's stop regexes.

    Raises:
        InvalidRequestError: One of them cannot be used, or they have too many states together.
    """
    automata = tuple(map(_automaton, patterns))
    num_states = sum(len(automaton.tests) for automaton in automata)
    if num_states > MAX_STATES:
        raise InvalidRequestError(
            f"the stop regexes have {num_states} states together; a request may have {MAX_STATES}. "
            "Shorten their repetitions, or leave one out",
            param="stop_regex",
        )
    return automata


class StopMatch(NamedTuple):
    """The last characters of a match: positions in the text, and the regex."""

    end: int
    start: int
    pattern: str


class StopRegexes:
    """Searches for the first end of a match in a text that arrives in pieces.

    Args:
        patterns: Stop regexes.

    Attributes:
        position: Number of characters that were read.
        held_from: Position from which on the text may belong to a match.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.position = 0
        self.held_from = 0
        self._searches = [_Search(automaton) for automaton in compile_stop_regexes(patterns)]
        self._has_assertions = any(search.automaton.has_assertions for search in self._searches)
        self._looks_ahead = any(search.automaton.looks_ahead for search in self._searches)
        self._previous = ""  # the last character; empty at the start of the text

    def skip(self, text: str) -> None:
        """Pass text in which no match begins or ends."""
        if text:
            self.position += len(text)
            self.held_from = self.position
            self._previous = text[-1]

    def feed(self, text: str) -> StopMatch | None:
        """Read the next piece; return the match that ends first, if one does."""
        for character in text:
            if self._looks_ahead and (match := self._match(character)):
                return match
            context = self._context(character)
            for search in self._searches:
                search.take(self.position, character, context)
            self.position += 1
            self._previous = character
            if match := self._match(None):
                return match
        starts = [search.starts[0] for search in self._searches if search.starts]
        self.held_from = max(min(starts, default=self.position), self.position - MAX_HELD)
        return None

    def close(self) -> StopMatch | None:
        """End the text; return the match that ends with it, if its end was not certain before."""
        return self._match("")

    def _match(self, following: str | None) -> StopMatch | None:
        """Return the longest of the matches that end at the current position."""
        context = self._context(following)
        starts = [(search.start_of_end(context), search.automaton) for search in self._searches]
        least = max(0, self.position - MAX_HELD)
        matches = [
            StopMatch(self.position, max(start, least), automaton.pattern)
            for start, automaton in starts
            if start is not None
        ]
        return min(matches, default=None)

    def _context(self, following: str | None) -> Context:
        return context_between(self._previous, following) if self._has_assertions else NOWHERE


class _Search:
    """The search for one regex.

    Attributes:
        automaton: Automaton of the regex.
        starts: Where the matches of each group of states began.
    """

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.starts: list[int] = []
        self._groups = Groups()

    def take(self, position: int, character: str, context: Context) -> None:
        """Take the character at a position, where a match may begin."""
        self._groups, sources = self.automaton.step(self._groups, character, context)
        starts = self.starts
        starts.append(position)
        self.starts = [starts[source] for source in sources]

    def start_of_end(self, context: Context) -> int | None:
        """Return where the longest match that ends at a position began; None: none ends."""
        index = self.automaton.first_end(self._groups, context) if self.starts else None
        return None if index is None else self.starts[index]


def context_between(previous: str, following: str | None) -> Context:
    """Return the context between two characters.

    Args:
        previous: Character before the position; empty at the start of the text.
        following: Character behind it; empty at the end of the text, None if it is unknown.
    """
    is_boundary = None if following is None else _is_word(previous) is not _is_word(following)
    return Context(not previous, previous in ("", "\n"), following in ("", "\n"), is_boundary)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _automaton(pattern: str) -> Automaton:
    automaton = Automaton(pattern)
    automaton.end = automaton.add(None)
    automaton.start = _build(automaton, parse_stop_regex(pattern), automaton.end)
    kinds = {test.kind for test in automaton.tests if isinstance(test, Assertion)}
    automaton.has_assertions = bool(kinds)
    automaton.looks_ahead = bool(kinds & set("$bB"))
    if automaton.can_be_empty():
        raise refused(pattern, "it matches the empty text, so it would end every completion")
    return automaton


def _build(automaton: Automaton, node: Node, target: int) -> int:
    """Add the states of a part of the regex; return the first, from which the last leads on."""
    if isinstance(node, Character | Assertion):
        return automaton.add(node, target)
    if isinstance(node, Alternatives):
        return automaton.add(None, *(_build(automaton, part, target) for part in node.parts))
    if isinstance(node, Repetition):
        return _build_repetition(automaton, node, target)
    for part in reversed(node.parts):
        target = _build(automaton, part, target)
    return target


def _build_repetition(automaton: Automaton, node: Repetition, target: int) -> int:
    entry = target
    if node.high == UNBOUNDED:
        entry = automaton.add(None, target)
        automaton.targets[entry].append(_build(automaton, node.part, entry))
    else:
        for _ in range(node.high - node.low):
            entry = automaton.add(None, _build(automaton, node.part, entry), target)
    for _ in range(node.low):
        entry = _build(automaton, node.part, entry)
    return entry
