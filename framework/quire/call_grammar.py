"""The grammar of completions with tool calls, which a tool parser makes from a request's tools.

A call is written in pieces: literal texts, JSON, plain text up to a marker, arguments of which some
may be missing. Structured-output backends compile them; they travel to the engine's process.

A literal text may contain special tokens of the model's tokenizer. Such a token is matched by its
id, since that is what models generate, and not by its spelling.
"""

from __future__ import annotations

from typing import Any

import msgspec


class SchemaPiece(msgspec.Struct, frozen=True, tag="schema"):
    """JSON: any value that satisfies the schema."""

    schema: dict[str, Any] | bool


class TextPiece(msgspec.Struct, frozen=True, tag="text"):
    """Plain text, as a string without quotes and escapes, and the marker behind it.

    Attributes:
        schema: Schema that the text satisfies as a string.
        end: Marker behind the text, which is nowhere in it.
        excluded: Other texts that are not in it.
        barred: Regular expressions of which none matches the whole text.
    """

    schema: dict[str, Any] | bool
    end: str
    excluded: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.end or "" in self.excluded:
            raise ValueError("a text needs a marker behind it, and excluded texts are not empty")


class RegexPiece(msgspec.Struct, frozen=True, tag="regex"):
    """Text that matches a regular expression as a whole, between two literal texts.

    Attributes:
        pattern: The expression.
        before: Text before it.
        after: Text behind it, which begins with a character that cannot go on with it.
        excluded: Texts that the matching text is not.
    """

    pattern: str
    before: str = ""
    after: str = ""
    excluded: tuple[str, ...] = ()


class EitherPiece(msgspec.Struct, frozen=True, tag="either"):
    """One of several sequences of pieces, each of which begins in its own way."""

    alternatives: tuple[tuple[Piece, ...], ...]

    def __post_init__(self) -> None:
        if not self.alternatives:
            raise ValueError("there are no alternatives")


class Member(msgspec.Struct, frozen=True):
    """An argument of a call, or a member of an object in it.

    Attributes:
        pieces: Its text, the name included.
        is_required: Whether it may not be missing.
    """

    pieces: tuple[Piece, ...]
    is_required: bool = True


class MembersPiece(msgspec.Struct, frozen=True, tag="members"):
    """Members in their order; those that are not required may be missing.

    Attributes:
        members: The members, none of them empty.
        separator: Text between two members.
        others: A member that may follow any number of times, with a name of its own; None: no
            others follow.
    """

    members: tuple[Member, ...]
    separator: str = ""
    others: Member | None = None


Piece = str | SchemaPiece | TextPiece | RegexPiece | EitherPiece | MembersPiece


class CallShape(msgspec.Struct, frozen=True):
    """The format of a call of one tool, from its first character to its last.

    Attributes:
        tool: Name of the tool, for error messages.
        pieces: What the call consists of, in order.
    """

    tool: str
    pieces: tuple[Piece, ...]


class CallGrammar(msgspec.Struct, frozen=True):
    """A grammar for completions with tool calls, for a structured-output backend.

    Calls are between `begin` and `end`, with the separator between two of them.

    Attributes:
        shapes: Formats of which each call follows one.
        separator: Text between two calls; None if the completion has no second one.
        triggers: Texts that begin calls in otherwise free text: `begin` begins with one, or without
            `begin` each shape does. Text may be before and, unless `separator` is None, after the
            calls. With neither `begin` nor `end` it is between two calls, in place of the
            separator. Empty: the completion consists of calls, one at least.
        begin: Text before the first call.
        end: Text after the last call.
        excluded: Texts that the free text does not contain, beside the triggers.
        covers_reasoning: Whether it is a grammar of the whole completion, and has room for
            reasoning that the prompt has opened; otherwise it begins behind that reasoning. Free
            text has room for it: its triggers then count where a call may end the reasoning.
        is_at_start: Whether calls are only at the start of the completion: then it consists of
            calls, or is text that does not begin with a trigger, blanks aside.
    """

    shapes: tuple[CallShape, ...]
    separator: str | None = None
    triggers: tuple[str, ...] = ()
    begin: str = ""
    end: str = ""
    excluded: tuple[str, ...] = ()
    is_at_start: bool = False
    covers_reasoning: bool = False

    @property
    def is_forced(self) -> bool:
        """Whether a call is forced: a completion has one at least."""
        return not self.triggers

    @property
    def follow_reasoning(self) -> bool:
        """Whether calls are forced behind reasoning that the prompt has opened."""
        return self.is_forced and not self.covers_reasoning

    def __post_init__(self) -> None:
        if "" in (*self.triggers, *self.excluded):
            raise ValueError("triggers and excluded texts of calls are not empty")


def checked(grammar: object) -> CallGrammar | None:
    """Return what a tool parser has made, with the types of all pieces checked.

    Raises:
        msgspec.ValidationError: It is no grammar; the message names the field.
    """
    if grammar is None:
        return None
    return msgspec.convert(msgspec.to_builtins(grammar), CallGrammar)
