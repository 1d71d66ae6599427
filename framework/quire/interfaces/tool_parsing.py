"""The interface of a tool-call parser.

A parser is an incremental state machine over text, independent of HTTP. A whole completion is
parsed as one long delta: any split of the text into deltas gives the same events, joined. A call
may be emitted before its arguments are complete, so its events are a start (with the name), pieces
of the arguments' JSON text, and an end. A call that breaks off after its start has no end: it is
void, and the text that the model generated for it is emitted as text, at the close if the call is
open there: what is emitted so is left out if a limit has cut the completion, and the call kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from quire.call_grammar import CallGrammar as CallGrammar
from quire.call_grammar import CallShape as CallShape
from quire.call_grammar import EitherPiece as EitherPiece
from quire.call_grammar import Member as Member
from quire.call_grammar import MembersPiece as MembersPiece
from quire.call_grammar import Piece as Piece
from quire.call_grammar import RegexPiece as RegexPiece
from quire.call_grammar import SchemaPiece as SchemaPiece
from quire.call_grammar import TextPiece as TextPiece
from quire.errors import PluginError
from quire.interfaces.declared_fields import check_declared

MAX_ID_LENGTH = 64  # letters and digits


@dataclass(frozen=True, slots=True)
class ToolParserCapabilities:
    """Capabilities of a tool parser, declared at registration.

    Raises:
        PluginError: A field has another type or an empty text, or `call_id_length` is out of range.

    Attributes:
        template_markers: Texts that the model's chat template must all contain for `auto` to choose
            the parser.
        architectures: Architectures of models for which `auto` may choose the parser; empty: all.
        priority: Rank for `auto`, which takes the matching parser with the highest one; of several,
            the one with the most markers, an architecture counting as one.
        markers: Texts with special tokens that the parser must see, although the text for the user
            has none: a special token of the tokenizer is shown to the parser if its text is part of
            one of these.
        calls_end_reasoning: Whether a call may be in the reasoning, and ends it. Then the parser
            reads the reasoning as well, and a call that is complete ends it.
        call_openers: Texts by which calls begin. In reasoning that a call may end, a budget of
            thinking tokens forces nothing behind one, as that would cut the call, and a completion
            whose constraint waits for the end of the reasoning may end there.
        call_id_length: Number of letters and digits of the ids of calls, if the model's chat
            template takes no others; None: any id will do.
        tokenizer_config_key: Key of a checkpoint's tokenizer_config.json whose value describes the
            parser; None: there is none. The parser is made by `from_file_text` from the JSON text
            of this value, and `auto` takes it if no other parser matches.
        alternative_markers: Further sets of template markers, one of which is enough.
        excluded_markers: Texts that the chat template must not contain for `auto` to choose the
            parser.
    """

    template_markers: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    priority: int = 0
    markers: tuple[str, ...] = ()
    calls_end_reasoning: bool = False
    call_openers: tuple[str, ...] = ()
    call_id_length: int | None = None
    tokenizer_config_key: str | None = None
    alternative_markers: tuple[tuple[str, ...], ...] = ()
    excluded_markers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_declared(self)
        if self.call_id_length is not None and not 1 <= self.call_id_length <= MAX_ID_LENGTH:
            raise PluginError(
                f"call_id_length of ToolParserCapabilities must be from 1 to {MAX_ID_LENGTH}, got "
                f"{self.call_id_length!r:.100}"
            )


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of the completion outside tool calls."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Start of a call.

    Attributes:
        index: Number of the call in the completion, from 0.
        name: Name of the tool.
        id: Id of the call, if the model has written one; None: quire makes one.
    """

    index: int
    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """Next piece of a call's arguments; the pieces concatenated are its JSON text."""

    index: int
    piece: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """End of a call, whose concatenated pieces are one JSON object."""

    index: int


ToolEvent = TextDelta | ToolCallStart | ToolCallArguments | ToolCallEnd


class ToolParser(ABC):
    """Splits model output into text and tool calls. Stateful; one parser per completion.

    Attributes:
        is_in_reasoning: Whether the next text is in the reasoning. It is set before each `feed`,
            and text up to the end of one of `call_openers` is fed by itself. A call that begins in
            the reasoning may be quoted, so it should be of a tool of the request.
        capabilities: Capabilities of a parser that a user's file defines; those of a plugin's
            parser are declared at registration.
    """

    capabilities: ClassVar[ToolParserCapabilities] = ToolParserCapabilities()
    is_in_reasoning: bool = False

    @classmethod
    def from_file_text(cls, text: str) -> type[ToolParser]:
        """Return a parser class that a user's file describes, with its `capabilities`.

        A plugin registers a class that has this method under a suffix, such as `.toml`: it makes
        the parsers of all files with this suffix that users name.

        Args:
            text: Text of the file.

        Raises:
            ValueError: The text describes no parser; the message names the field and the way out.
        """
        raise NotImplementedError(f"{cls.__name__} is not made from files")

    @classmethod
    def for_tools(cls, tools: Sequence[dict[str, Any]]) -> Self:
        """Return a parser of a completion with calls of `tools`.

        Formats that write values without types need the tools' schemas. By default a parser is made
        without arguments.

        Args:
            tools: OpenAI tool definitions, the `function` objects.
        """
        del tools
        return cls()

    @classmethod
    def prompt_call_id(cls, call_id: str, name: str, number: int) -> str:
        """Return the id that the chat template gets for a call of an earlier turn.

        Some templates take ids of one format only, and a conversation may have begun with another
        model. The tool's message gets the same id as its call.

        Args:
            call_id: Id in the conversation.
            name: Name of the tool.
            number: Number of calls before this one in the conversation.
        """
        del name, number
        return call_id

    @abstractmethod
    def feed(self, delta: str) -> list[ToolEvent]:
        """Parse the next piece of output, and return the events that are certain by now."""

    @abstractmethod
    def close(self) -> list[ToolEvent]:
        """Return the events of text that was held back. Broken calls become text, never errors."""

    @classmethod
    def call_grammar(
        cls, tools: Sequence[dict[str, Any]], *, at_least_one: bool
    ) -> CallGrammar | None:
        """Return a grammar for completions with calls of `tools`; None if unsupported.

        Schemas are passed on unchanged: the structured-output backend refuses what it does not
        support.

        Args:
            tools: OpenAI tool definitions, the `function` objects. Each has `parameters`, which are
                the schema of an object. With `strict: False` and optional calls its arguments are
                not constrained: `parameters` are those of any object.
            at_least_one: True if the completion consists of calls, for `tool_choice` required or
                named. False if calls are optional, in otherwise free text: then the grammar has
                `triggers`.
        """
        del tools, at_least_one
        return None
