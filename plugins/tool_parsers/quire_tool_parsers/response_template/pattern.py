"""Search for a pattern in a text that arrives in pieces, in time that is bounded.

All ways in which a text may match are followed at once, in the order in which a backtracking
engine would try them, so each character is looked at once for each start of a match (R. Cox,
Regular Expression Matching: the Virtual Machine Approach, 2009). A pattern that begins with a
repeated character, as blanks before a closing tag, is matched from behind the repetition, once for
all starts in it.
"""

import re
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, Self

from quire_tool_parsers.response_template.pattern_syntax import (
    Accept,
    AtEnd,
    Fork,
    Instruction,
    Mark,
    Program,
    Take,
    compile_pattern,
)

MAX_MATCH = 512  # characters of a match in a stream
MAX_EFFORT = 2  # characters looked at, for each character of a whole text

Slots = tuple[int, ...]
Thread = tuple[int, Slots]  # an instruction that waits for a character, and the positions so far
Step = tuple[int, Slots]  # the next such instruction, and the slots that are marked before it
Where = Literal["inside", "open", "end"]  # of a text; "open": where its next piece will follow
Pending = Literal["pending"]


@dataclass(frozen=True, slots=True)
class Found:
    """A match.

    Attributes:
        start: Position of its first character.
        end: Position behind its last character.
        captures: Texts of the named groups that took part.
    """

    start: int
    end: int
    captures: dict[str, str]


Try = tuple[int, Found | Pending | None, int]  # a position, its match, and characters looked at


@dataclass(frozen=True, slots=True)
class Lead:
    """A character that is repeated at the start of a pattern, and is none behind the repetition.

    Attributes:
        run: Pattern of any number of the character.
        first: Pattern of the first character behind the repetition.
        place: Instruction behind it.
        least: Least number of characters, 0 or 1.
    """

    run: re.Pattern[str]
    first: re.Pattern[str]
    place: int
    least: int

    def start(self, text: str, start: int, end: int) -> int:
        """Return where the characters before a position begin that are repeated.

        Args:
            text: Text that is searched.
            start: First position of the part of it that counts.
            end: The position.
        """
        found = self.run.match(text[start:end][::-1])
        return end if found is None else end - found.end()


class Pattern:
    """A regular expression.

    Args:
        text: Its text.

    Raises:
        ValueError: The pattern is invalid, or has what is not supported.
    """

    def __init__(self, text: str) -> None:
        self._program: Program = compile_pattern(text)
        self.groups = frozenset(self._program.groups)
        self.literals = tuple(self._program.literals)
        self._steps: dict[tuple[int, Where], Sequence[Step]] = {}

    @classmethod
    def for_search(cls, text: str) -> Self:
        """Return a pattern that is searched for: what a search needs is worked out at once.

        That looks at all characters there are, which would delay the first completion.

        Raises:
            ValueError: The pattern is invalid, or has what is not supported.
        """
        pattern = cls(text)
        pattern.find("", 0, is_last=True)
        return pattern

    def find(
        self, text: str, start: int, *, is_last: bool, may_be_empty: bool = False
    ) -> tuple[Found | None, int]:
        """Return the first match that is certain, and the position up to which there is no other.

        Args:
            text: Text to search.
            start: Position in it from which on.
            is_last: Whether nothing follows the text.
            may_be_empty: Whether a match may be empty.
        """
        for at, result, _ in self._tries(text, start, MAX_MATCH, is_last=is_last):
            if result == "pending":
                return None, at
            if result and (result.end > at or may_be_empty):
                return result, at
        return None, len(text)

    def find_all(self, text: str) -> Iterator[Found]:
        """Yield the matches in a whole text, without empty ones.

        Raises:
            ValueError: The search takes too long.
        """
        end, left = 0, MAX_EFFORT * (len(text) + MAX_MATCH)
        is_found = True
        while is_found:
            is_found = False
            for at, result, num_seen in self._tries(text, end, len(text), is_last=True):
                left -= num_seen
                if left < 0:
                    raise ValueError("the search for a pattern takes too long")
                if isinstance(result, Found) and result.end > at:
                    yield result
                    end, is_found = result.end, True
                    break

    def full_match(self, text: str) -> Found | None:
        """Return the match that is a whole text; None if it does not match."""
        code, num_slots = self._program.code, self._program.num_slots
        threads = self._moved([(-1, (-1,) * num_slots)], 0, "inside" if text else "end")
        for at, character in enumerate(text, 1):
            moved = [each for each in threads if _takes(code[each[0]], character)]
            threads = self._moved(moved, at, "end" if at == len(text) else "inside")
        matches = (slots for place, slots in threads if isinstance(code[place], Accept))
        slots = next(matches, None)
        return None if slots is None else self._found(text, 0, len(text), slots)

    def _tries(self, text: str, start: int, limit: int, *, is_last: bool) -> Iterator[Try]:
        """Yield what begins at each position at which a match may begin."""
        lead = self._lead
        if lead is None:
            for at in self._starts(text, start, self._first):
                yield at, *self._match(text, at, limit, is_last=is_last)
            return
        for at in self._starts(text, start, lead.first):
            first = lead.start(text, max(start, at - limit), at)
            if at - first >= lead.least:
                result, num_seen = self._match(text, at, limit, is_last=is_last, place=lead.place)
                if isinstance(result, Found):
                    first = min(at - lead.least, max(first, result.end - limit))
                    result = Found(first, result.end, result.captures)
                yield first, result, num_seen
        if not is_last:
            first = lead.start(text, max(start, len(text) - limit), len(text))
            yield first, "pending", len(text) - first

    @staticmethod
    def _starts(text: str, start: int, first: re.Pattern[str] | None) -> Iterator[int]:
        """Yield the positions from one on at which there is a first character; None: all."""
        if first is None:
            yield from range(start, len(text) + 1)
            return
        for found in first.finditer(text, start):
            yield found.start()

    @cached_property
    def _first(self) -> re.Pattern[str] | None:
        """Pattern of the first character; None if a match may have none."""
        return self._first_from(0)

    def _first_from(self, place: int) -> re.Pattern[str] | None:
        tests = []
        for target, _ in self._behind(place, "open"):
            instruction = self._program.code[target]
            if not isinstance(instruction, Take):
                return None
            tests.append(instruction.test.pattern)
        return re.compile("|".join(tests) or "(?!)", re.DOTALL)

    @cached_property
    def _lead(self) -> "Lead | None":
        """What the pattern repeats at its start; None: nothing, or what follows may begin alike."""
        match self._program.code:
            case [Fork(1 | 3), Take(test), Fork(-2), *_]:
                place, least = 3, 0
            case [Take(test), Fork(1 | 3), Take(again), Fork(-2), *_] if again == test:
                place, least = 4, 1
            case _:
                return None
        first = self._first_from(place)
        is_alike = first is None or re.search(
            f"(?={test.pattern})(?:{first.pattern})", _all_characters(), re.DOTALL
        )
        if first is None or is_alike:
            return None
        return Lead(re.compile(f"(?:{test.pattern})*", re.DOTALL), first, place, least)

    def _match(
        self, text: str, start: int, limit: int, *, is_last: bool, place: int = 0
    ) -> tuple[Found | Pending | None, int]:
        """Return the match that begins at a position, and how many characters were looked at.

        The match is "pending" if what follows the text decides.

        Args:
            text: Text that is searched.
            start: The position.
            limit: Most characters of the match.
            is_last: Whether nothing follows the text.
            place: First instruction.
        """
        code = self._program.code
        stop = min(len(text), start + limit)
        edge: Where = "end" if is_last else "open"
        best: Found | None = None
        begin = (place - 1, (-1,) * self._program.num_slots)
        threads = self._moved([begin], start, edge if start == len(text) else "inside")
        for at in range(start, stop + 1):
            for number, (place, slots) in enumerate(threads):
                if isinstance(code[place], Accept):
                    best, threads = self._found(text, start, at, slots), threads[:number]
                    break
            if at == len(text) and threads and not is_last:
                return "pending", at - start
            if at == stop or not threads:
                break
            character, where = text[at], edge if at + 1 == len(text) else "inside"
            moved = [each for each in threads if _takes(code[each[0]], character)]
            threads = self._moved(moved, at + 1, where)
        return best, at - start + 1

    def _moved(self, threads: Sequence[Thread], at: int, where: Where) -> list[Thread]:
        """Return the threads behind the instructions of others, the preferred first."""
        seen, following = set[int](), list[Thread]()
        for place, slots in threads:
            for target, marks in self._behind(place + 1, where):
                if target in seen:
                    continue
                seen.add(target)
                following.append((target, _marked(slots, marks, at) if marks else slots))
        return following

    def _behind(self, place: int, where: Where) -> Sequence[Step]:
        """Return the instructions that wait for a character, from one on, the preferred first."""
        if (place, where) not in self._steps:
            self._steps[place, where] = self._follow(place, where)
        return self._steps[place, where]

    def _follow(self, place: int, where: Where) -> list[Step]:
        code, steps = self._program.code, list[Step]()
        seen, stack = set[int](), [(place, Slots())]
        while stack:
            place, marks = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            match code[place]:
                case Fork(first, second):
                    stack += [(place + second, marks), (place + first, marks)]
                case Mark(slot):
                    stack.append((place + 1, (*marks, slot)))
                case AtEnd() if where == "end":
                    stack.append((place + 1, marks))
                case AtEnd() if where == "inside":
                    pass
                case _:
                    steps.append((place, marks))
        return steps

    def _found(self, text: str, start: int, at: int, slots: Slots) -> Found:
        captures = {
            name: text[slots[slot] : slots[slot + 1]]
            for name, slot in self._program.groups.items()
            if slots[slot + 1] >= 0
        }
        return Found(start, slots[0] if slots[0] >= 0 else at, captures)


@cache
def _all_characters() -> str:
    points = array("I", range(sys.maxunicode + 1))
    return points.tobytes().decode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass")


def _takes(instruction: Instruction, character: str) -> bool:
    return isinstance(instruction, Take) and instruction.test.match(character) is not None


def _marked(slots: Slots, marks: Slots, at: int) -> Slots:
    return tuple(at if slot in marks else position for slot, position in enumerate(slots))
