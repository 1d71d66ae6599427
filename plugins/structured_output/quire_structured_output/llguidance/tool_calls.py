"""Grammars of tool calls: of calls and nothing else, or of calls in free text, after a trigger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import GrammarError
from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    EitherPiece,
    MembersPiece,
    Piece,
    RegexPiece,
    SchemaPiece,
    TextPiece,
)
from quire_structured_output.llguidance.call_starts import may_go_on_with
from quire_structured_output.llguidance.call_text import FreeText, check_triggers
from quire_structured_output.llguidance.grammar_parts import ANY_TEXT, SOME_TEXT, words
from quire_structured_output.llguidance.lark_rules import LarkRules
from quire_structured_output.llguidance.lark_writing import in_slashes, json_part, literal
from quire_structured_output.llguidance.plain_text import plain_text
from quire_structured_output.llguidance.special_tokens import NO_SPECIAL_TOKENS, SpecialTokens
from quire_structured_output.regex_syntax import check_regex

OPENING = frozenset(  # keywords by which an object may have other names
    {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"}
    | {"allOf", "anyOf", "oneOf", "if", "$ref", "$dynamicRef", "dependentSchemas", "dependencies"}
)
MAX_DEPTH = 64  # of members in members
EMPTY = '""'

NormalForm = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call: the tool, its first text, the pieces behind that, and its expression."""

    tool: str
    first: str
    rest: Sequence[Piece]
    expression: str


def lark_of_calls(
    calls: CallGrammar, normal_form: NormalForm, special_tokens: SpecialTokens = NO_SPECIAL_TOKENS
) -> str:
    """Return the grammar of tool calls.

    Args:
        calls: Formats of the calls.
        normal_form: Function that returns the normal form of a JSON schema in them.
        special_tokens: Special tokens of the tokenizer.

    Raises:
        GrammarError: A tool's schema is not supported, or a call has no trigger; the message names
            the tool.
    """
    if not calls.shapes:
        raise GrammarError("the request has no tool that could be called")
    rules = LarkRules(special_tokens)
    writer = _CallWriter(normal_form, rules)
    if not calls.triggers:
        return rules.grammar(writer.calls(calls))
    check_triggers(calls)
    text = FreeText(calls, rules)
    if calls.is_at_start:
        return rules.grammar(f"{writer.calls(calls)} | {text.other()}")
    sections = [text.before(trigger, writer.section(calls, trigger)) for trigger in calls.triggers]
    return rules.grammar(text.with_sections(sections))


class _CallWriter:
    """Writer of the rules of calls."""

    def __init__(self, normal_form: NormalForm, rules: LarkRules) -> None:
        self._normal_form = normal_form
        self._rules = rules

    def calls(self, calls: CallGrammar) -> str:
        """Return the expression of one or more calls with what is around them."""
        call = self._either([self._shape(shape) for shape in calls.shapes])
        return self._sequence([self._rules.text(calls.begin), *self._repeated(call, calls)])

    def section(self, calls: CallGrammar, trigger: str) -> str:
        """Return the expression of calls behind a trigger, which has been written."""
        if calls.begin:
            call = self._either([self._shape(shape) for shape in calls.shapes])
            begin = self._rules.text(calls.begin.removeprefix(trigger))
            return self._sequence([begin, *self._repeated(call, calls)])
        own = [shape for shape in calls.shapes if _beginning(shape).startswith(trigger)]
        first = self._either([self._shape(shape, trigger) for shape in own])
        if not calls.end:
            return first
        call = self._either([self._shape(shape) for shape in calls.shapes])
        return self._sequence([first, *self._repeated(call, calls)[1:]])

    def _repeated(self, call: str, calls: CallGrammar) -> list[str]:
        """Return the parts of one or more calls: the first, the others, the end."""
        rest = ""
        if calls.separator is not None:
            rest = f"({self._sequence([self._rules.text(calls.separator), call])})*"
        return [call, rest, self._rules.text(calls.end)]

    def _shape(self, shape: CallShape, written: str = "") -> _Call:
        """Return a call without what is written."""
        pieces = list(shape.pieces)
        if written and isinstance(pieces[0], str):
            pieces[0] = pieces[0].removeprefix(written)
        pieces = [piece for piece in pieces if piece != ""]
        try:
            expression = self._pieces(pieces, 0)
        except GrammarError as error:
            raise GrammarError(f"the parameters of the tool {shape.tool!r:.80}: {error}") from error
        first = pieces[0] if pieces and isinstance(pieces[0], str) else ""
        return _Call(shape.tool, first, pieces[1:], expression)

    def _either(self, calls: Sequence[_Call]) -> str:
        """Return the rule of one of several calls."""
        _check_beginnings(calls)
        return self._rules.rule(" | ".join(dict.fromkeys(each.expression for each in calls)))

    # --- pieces -------------------------------------------------------------------------------

    def _pieces(self, pieces: Iterable[Piece], depth: int) -> str:
        if depth > MAX_DEPTH:
            raise GrammarError(f"members are nested more than {MAX_DEPTH} deep")
        return self._rules.rule(self._sequence(self._piece(piece, depth) for piece in pieces))

    def _piece(self, piece: Piece, depth: int) -> str:
        match piece:
            case str():
                return self._rules.text(piece)
            case SchemaPiece(schema):
                return self._rules.rule(json_part(self._normal_form(_closed(schema))))
            case TextPiece():
                return self._text(piece)
            case RegexPiece():
                return self._regex(piece)
            case EitherPiece(alternatives):
                parts = [self._pieces(each, depth + 1) for each in alternatives]
                return self._rules.rule(" | ".join(parts))
            case MembersPiece():
                return self._members(piece, depth)

    def _text(self, piece: TextPiece) -> str:
        """Return the expression of a text and its end.

        They are one terminal, up to what shows that the text has ended: a special token, or one of
        the excluded texts.
        """
        text = plain_text(self._normal_form(piece.schema))
        content = " & ".join([text.terminal, *(f"~{_pattern(each)}" for each in piece.barred)])
        marker, rest = self._rules.split_at_special_token(piece.end)
        events = words(dict.fromkeys([piece.end, *piece.excluded]))
        if rest:
            content = f"({content}) {literal(marker)}" if marker else content
            whole = f"({content}) & ~({ANY_TEXT} {events} {ANY_TEXT})"
            is_optional = text.may_be_empty and not marker
            return self._sequence([self._rules.terminal(whole) + "?" * is_optional, rest])
        ends = [marker.find(each) + len(each) for each in piece.excluded if each in marker]
        marker = marker[: min(ends, default=len(marker))]
        events = words(dict.fromkeys([marker, *piece.excluded]))
        whole = f"(({content}) {literal(marker)}) & ~({ANY_TEXT} {events} {SOME_TEXT})"
        rest = self._rules.text(piece.end[len(marker) :])
        return self._sequence([self._rules.terminal(whole), rest])

    def _regex(self, piece: RegexPiece) -> str:
        """Return the expression of a pattern and the texts beside it.

        They are one terminal, up to special tokens in them, so that it differs from literal texts.
        """
        text = _pattern(piece.pattern)
        if piece.excluded:
            text = f"({text} & ~{words(piece.excluded)})"
        before, after = map(self._rules.special_tokens.split, (piece.before, piece.after))
        inner = [literal(each) for each in before[-1:] if isinstance(each, str)]
        inner += [text, *(literal(each) for each in after[:1] if isinstance(each, str))]
        head = before[: len(before) - any(isinstance(each, str) for each in before[-1:])]
        tail = after[any(isinstance(each, str) for each in after[:1]) :]
        parts = [self._rules.parts(head), self._rules.terminal(" ".join(inner))]
        return self._sequence([*parts, self._rules.parts(tail)])

    def _members(self, piece: MembersPiece, depth: int) -> str:
        """Return the expression of members, of which the first that is there has no separator."""
        separator = self._rules.text(piece.separator)
        first = later = ""
        if piece.others is not None:
            own = self._pieces(piece.others.pieces, depth + 1)
            later = self._rules.rule(f"({self._sequence([separator, own])})*")
            first = self._rules.rule(f"{self._sequence([own, later])} | {EMPTY}")
        for member in reversed(piece.members):
            own = self._pieces(member.pieces, depth + 1)
            as_first, as_later = ([own, later], [separator, own, later])
            if member.is_required:
                first, later = self._sequence(as_first), self._sequence(as_later)
            else:
                first = f"{self._sequence(as_first)} | {first or EMPTY}"
                later = f"({self._sequence(as_later)} | {later or EMPTY})"
            first, later = self._rules.rule(first), self._rules.rule(later)
        return first

    def _sequence(self, parts: Iterable[str]) -> str:
        return " ".join(part for part in parts if part not in ("", EMPTY)) or EMPTY


def _check_beginnings(calls: Sequence[_Call]) -> None:
    """Check that a lexer, which takes the longest text, tells the first texts of calls apart.

    Raises:
        GrammarError: One call goes on as the first text of another does.
    """
    begun = sorted(calls, key=lambda call: call.first)
    for i, one in enumerate(begun):
        for other in begun[i + 1 :] if one.first else ():
            if not other.first.startswith(one.first):
                break
            rest = other.first[len(one.first) :]
            if rest and may_go_on_with(one.rest, rest[0]):
                raise GrammarError(
                    f"calls of the tools {one.tool!r:.80} and {other.tool!r:.80} cannot be told "
                    f"apart: the text {one.first[-80:]!r} of one is the beginning of the other"
                )


def _pattern(pattern: str) -> str:
    """Return the terminal of a regular expression."""
    check_regex(pattern, "a pattern in a call")
    return f"/{in_slashes(pattern)}/"


def _beginning(shape: CallShape) -> str:
    first = shape.pieces[0] if shape.pieces else ""
    return first if isinstance(first, str) else ""


def _closed(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    """Return the schema of a tool's arguments without names that the tool does not declare."""
    if isinstance(schema, bool) or "properties" not in schema or OPENING & schema.keys():
        return schema
    return {**schema, "additionalProperties": False}
