"""Syntax of the regular expressions in files of checkpoints and users, and their programs.

The patterns are untrusted, or what they match is. So they are matched by the machine of `pattern`,
whose time does not explode, and what it has no instruction for is refused: look-behind, back
references, flags.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

MAX_PATTERN = 2000  # characters
MAX_INSTRUCTIONS = 2000
MAX_DEPTH = 20  # of groups
NO_LIMIT = -1

_COUNTS = re.compile(r"\{(?=[\d,])(\d{0,4})(,?)(\d{0,4})\}")
_NAME = re.compile(r"\((?:\?P?<([A-Za-z_]\w*)>)")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_INNER_BRACKET = re.compile(r"(\\.)|(?<!^)\[", re.DOTALL)  # an escape, or a bracket without one
_CLASS_ESCAPES = "dDsSwW"
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_CODE = re.compile(r"x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}")


@dataclass(frozen=True, slots=True)
class Take:
    """Read one character that a test allows."""

    test: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Fork:
    """Go on at two instructions, of which the first one is preferred."""

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Note the position in a slot."""

    slot: int


@dataclass(frozen=True, slots=True)
class AtEnd:
    """Go on at the end of the text only."""


@dataclass(frozen=True, slots=True)
class Accept:
    """The text matches."""


Instruction = Take | Fork | Mark | AtEnd | Accept
Emit = Callable[[], None]


@dataclass(slots=True)
class Program:
    """A compiled pattern.

    Attributes:
        code: Instructions.
        groups: Slots of the start of each named group; that of its end is the next one.
        num_slots: Number of slots. In the first one is the end of the match, if text is looked at
            that follows it.
        literals: Runs of plain characters in the pattern.
    """

    code: list[Instruction] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)
    num_slots: int = 1
    literals: list[str] = field(default_factory=list)


def compile_pattern(text: str) -> Program:
    """Return the program of a pattern; a dot is any character, line breaks included.

    Raises:
        ValueError: The pattern is invalid, or has what is not supported.
    """
    if len(text) > MAX_PATTERN:
        raise ValueError(f"a pattern has {len(text)} characters; the limit is {MAX_PATTERN}")
    reader = _Reader(text)
    reader.read()
    return reader.program


class _Reader:
    """Reader of a pattern, which emits instructions as it reads.

    A part is compiled before it is known whether it is repeated; its instructions are moved then.
    """

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.program = Program()
        self._literal: list[str] = []

    def read(self) -> None:
        """Read the whole pattern."""
        self._emit_all(self._alternatives(0))
        if self._at < len(self._text):
            self._refuse("a bracket is closed that was not opened")
        self.program.code.append(Accept())

    def _emit_all(self, code: list[Instruction]) -> None:
        self.program.code += code

    def _alternatives(self, depth: int) -> list[Instruction]:
        if depth > MAX_DEPTH:
            self._refuse("groups are nested too deeply")
        branches = [self._sequence(depth)]
        while self._next("|"):
            branches.append(self._sequence(depth))
        code = branches.pop()
        for branch in reversed(branches):
            code = _either(branch, code)
            self._check_size(code)
        return code

    def _sequence(self, depth: int) -> list[Instruction]:
        code: list[Instruction] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            code += self._repeated(self._part(depth))
            self._check_size(code)
        self._end_literal()
        return code

    def _part(self, depth: int) -> list[Instruction]:
        """Read one part of a sequence, without its count."""
        start, character = self._at, self._text[self._at]
        match character:
            case "(":
                self._end_literal()
                return self._group(depth)
            case "[":
                return [self._class()]
            case ".":
                self._at += 1
                return [self._any_of(".")]
            case "$":
                self._at += 1
                return [AtEnd()]
            case "\\":
                return [self._escape()]
            case "^" | "*" | "+" | "?":
                self._refuse(f"{character!r} is not supported here")
        self._at = start + 1
        return [self._character(character)]

    def _group(self, depth: int) -> list[Instruction]:
        text, at, slot = self._text, self._at, 0
        is_ahead = text.startswith("(?=", at)
        if name := _NAME.match(text, at):
            self._at = name.end()
            slot = self._new_slots(name[1])
        elif is_ahead or text.startswith("(?:", at):
            self._at = at + 3
        elif text.startswith("(?", at):
            self._refuse("only groups (...), (?:...), (?P<name>...) and (?=...) are supported")
        else:
            self._at = at + 1
        code = self._alternatives(depth + 1)
        if not self._next(")"):
            self._refuse("a bracket is not closed")
        if is_ahead:
            if depth or text[self._at : self._at + 1] not in ("", "|"):
                self._refuse("(?=...) is supported only as the last part")
            return [Mark(0), *code]
        return [Mark(slot), *code, Mark(slot + 1)] if slot else code

    def _new_slots(self, name: str) -> int:
        program = self.program
        if name in program.groups:
            self._refuse(f"there are two groups {name!r}")
        program.groups[name] = slot = program.num_slots
        program.num_slots += 2
        return slot

    def _class(self) -> Take:
        found = _CLASS.match(self._text, self._at)
        if found is None:
            self._refuse("a class of characters is not closed")
        self._at = found.end()
        return self._any_of(_INNER_BRACKET.sub(lambda each: each[1] or r"\[", found.group()))

    def _escape(self) -> Instruction:
        character = self._text[self._at + 1 : self._at + 2]
        if code := _CODE.match(self._text, self._at + 1):
            self._at = code.end()
            return self._character(chr(int(code.group()[1:], 16)))
        self._at += 2
        if character and character in _CLASS_ESCAPES:
            return self._any_of(f"\\{character}")
        if character in ("Z", "z"):
            return AtEnd()
        if character in _CONTROLS:
            return self._character(_CONTROLS[character])
        if not character or character.isalnum():
            self._refuse(f"\\{character} is not supported")
        return self._character(character)

    def _character(self, character: str) -> Take:
        self._literal.append(character)
        return Take(re.compile(re.escape(character)))

    def _any_of(self, source: str) -> Take:
        self._end_literal()
        try:
            return Take(re.compile(source, re.DOTALL))
        except re.error as error:
            raise ValueError(f"the pattern {self._text!r} is invalid: {error}") from error

    def _repeated(self, part: list[Instruction]) -> list[Instruction]:
        """Return the instructions of a part with the count behind it."""
        text, at = self._text, self._at
        least, most = 1, 1
        if at < len(text) and text[at] in "*+?":
            least, most = {"*": (0, NO_LIMIT), "+": (1, NO_LIMIT), "?": (0, 1)}[text[at]]
            self._at += 1
        elif counts := _COUNTS.match(text, at):
            least = int(counts[1] or 0)
            most = int(counts[3]) if counts[3] else NO_LIMIT if counts[2] else least
            self._at = counts.end()
        else:
            return part
        self._end_literal()
        is_lazy = self._next("?")
        if self._text[self._at : self._at + 1] in ("+", "*") or NO_LIMIT < most < least:
            self._refuse("a count is invalid")
        if any(isinstance(each, Mark) for each in part) and max(least, most) > 1:
            self._refuse("a named group may have no count but ?")
        if len(part) * max(least, most) > MAX_INSTRUCTIONS:
            self._refuse("the pattern is too large")
        return _counted(part, least, most, is_lazy=is_lazy)

    def _next(self, character: str) -> bool:
        is_there = self._text.startswith(character, self._at)
        self._at += is_there
        return is_there

    def _end_literal(self) -> None:
        if self._literal:
            self.program.literals.append("".join(self._literal))
            self._literal = []

    def _check_size(self, code: list[Instruction]) -> None:
        if len(code) > MAX_INSTRUCTIONS:
            self._refuse("the pattern is too large")

    def _refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"the pattern {self._text!r}, character {self._at}: {reason}")


# The positions in `Fork` are relative to the instruction.


def _either(first: list[Instruction], second: list[Instruction]) -> list[Instruction]:
    behind = len(second) + 1
    return [Fork(1, len(first) + 2), *first, Fork(behind, behind), *second]


def _counted(part: list[Instruction], least: int, most: int, *, is_lazy: bool) -> list[Instruction]:
    code = part * least
    if most == NO_LIMIT:
        behind, back = len(part) + 2, -len(part) - 1
        return [*code, _fork(1, behind, is_lazy), *part, Fork(back, back)]
    for _ in range(most - least):
        code = [*code, _fork(1, len(part) + 1, is_lazy), *part]
    return code


def _fork(inside: int, behind: int, is_lazy: bool) -> Fork:
    return Fork(behind, inside) if is_lazy else Fork(inside, behind)
