"""Incremental parsing of completions: reasoning is split off first, then tool calls."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quire.call_grammar import checked
from quire.errors import RequestError
from quire.frontend.chat.tool_schemas import normalized
from quire.frontend.plugin_failure import plugin_failure
from quire.interfaces.reasoning import ReasoningDelta, ReasoningEvent, ReasoningParser
from quire.interfaces.tool_parsing import (
    CallGrammar,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
)
from quire.outputs import CompletionOutput, ToolCall
from quire.plugins.registry import Source

CompletionEvent = ReasoningDelta | ToolEvent
P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ParserChoice(Generic[P]):
    """A chosen parser class, and the plugin that provides it."""

    parser: type[P]
    source: Source


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """The parts of a whole completion.

    Attributes:
        text: Text for the user.
        reasoning: Reasoning text; None if there was none.
        calls: Name and arguments of each complete tool call. A call that breaks off is not
            included: its text is part of `text`.
    """

    text: str
    reasoning: str | None
    calls: tuple[tuple[str, str], ...]


class CompletionParser:
    """Parses one completion.

    Args:
        reasoning_parser: Parser of the reasoning; None if the model has none.
        tool_parser: Parser of tool calls; None if the request has no tools.
        reasoning_source: Plugin to name in errors of the reasoning parser.
        tool_source: Plugin to name in errors of the tool parser.
    """

    def __init__(
        self,
        reasoning_parser: ReasoningParser | None = None,
        tool_parser: ToolParser | None = None,
        *,
        reasoning_source: Source | None = None,
        tool_source: Source | None = None,
    ) -> None:
        self._reasoning = reasoning_parser
        self._tools = tool_parser
        self._reasoning_source = reasoning_source
        self._tool_source = tool_source

    def feed(self, delta: str) -> list[CompletionEvent]:
        """Parse the next part of the completion; return the events that are certain by now.

        Raises:
            RequestFailedError: A parser failed; the message names its plugin.
        """
        if self._reasoning is None:
            return [*self._read_text(delta)]
        parser = self._reasoning
        events = _guard(lambda: parser.feed(delta), self._reasoning_source)
        return [*self._read_reasoning(events)]

    def close(self) -> list[CompletionEvent]:
        """Return the events held back, at the end of the completion.

        Raises:
            RequestFailedError: A parser failed; the message names its plugin.
        """
        events: list[CompletionEvent] = []
        if self._reasoning is not None:
            last = _guard(self._reasoning.close, self._reasoning_source)
            events += self._read_reasoning(last)
        if self._tools is not None:
            events += _guard(self._tools.close, self._tool_source)
        return events

    def read_whole(self, text: str) -> ParsedCompletion:
        """Parse a whole completion; the parser cannot be used again.

        Raises:
            RequestFailedError: A parser failed; the message names its plugin.
        """
        return gather([*self.feed(text), *self.close()])

    def _read_reasoning(self, events: Iterable[ReasoningEvent]) -> Iterator[CompletionEvent]:
        for event in events:
            if isinstance(event, ReasoningDelta):
                yield event
            else:
                yield from self._read_text(event.text)

    def _read_text(self, text: str) -> list[ToolEvent]:
        if self._tools is None:
            return [TextDelta(text)] if text else []
        parser = self._tools
        return _guard(lambda: parser.feed(text), self._tool_source)


def gather(events: Iterable[CompletionEvent]) -> ParsedCompletion:
    """Join all events of one completion."""
    texts: list[str] = []
    reasoning_texts: list[str] = []
    open_calls: dict[int, tuple[str, list[str]]] = {}
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case TextDelta(text):
                texts.append(text)
            case ReasoningDelta(text):
                reasoning_texts.append(text)
            case ToolCallStart(index, name):
                open_calls[index] = (name, [])
            case ToolCallArguments(index, piece):
                open_calls[index][1].append(piece)
            case ToolCallEnd(index):
                name, pieces = open_calls[index]
                calls.append((name, "".join(pieces)))
    return ParsedCompletion(
        "".join(texts), "".join(reasoning_texts) if reasoning_texts else None, tuple(calls)
    )


class CompletionParsers:
    """Makes the parser of each completion.

    Args:
        reasoning: Reasoning parser in use, if any.
        tools: Tool parser in use, if any.

    Attributes:
        reads_reasoning: Whether there is a reasoning parser.
        reads_calls: Whether there is a tool parser; without one, tool calls are not parsed.
    """

    def __init__(
        self,
        reasoning: ParserChoice[ReasoningParser] | None = None,
        tools: ParserChoice[ToolParser] | None = None,
    ) -> None:
        self.reasoning = reasoning
        self.tools = tools
        self.reads_reasoning = reasoning is not None
        self.reads_calls = tools is not None

    def call_grammar(
        self, functions: Sequence[dict[str, Any]], *, at_least_one: bool
    ) -> CallGrammar | None:
        """Return the grammar of completions with calls of `functions`.

        Args:
            functions: `function` objects of OpenAI's tool definitions; the parser gets them with
                `parameters` that are always an object's schema.
            at_least_one: True if a completion consists of calls; False if it is free text in which
                calls may be.

        Returns:
            None if there is no tool parser, or if it has no such grammar.

        Raises:
            RequestError: The parser refuses the functions, or the parameters of one are not the
                schema of an object.
            RequestFailedError: The parser failed; the message names its plugin.
        """
        if (tools := self.tools) is None:
            return None
        given = normalized(functions)
        return _guard(
            lambda: checked(tools.parser.call_grammar(given, at_least_one=at_least_one)),
            tools.source,
            "building the grammar of tool calls",
        )

    def __call__(self, prompt_text: str, *, with_tools: bool) -> CompletionParser:
        """Return a parser for one completion.

        Args:
            prompt_text: Rendered prompt, which may contain the start of the reasoning.
            with_tools: Whether to parse tool calls: the request has tools.

        Raises:
            RequestFailedError: A plugin's parser cannot be built.
        """
        tools = self.tools if with_tools else None
        return CompletionParser(
            None if self.reasoning is None else _build(self.reasoning, prompt_text),
            None if tools is None else _build(tools),
            reasoning_source=None if self.reasoning is None else self.reasoning.source,
            tool_source=None if tools is None else tools.source,
        )

    def split(self, outputs: Iterable[CompletionOutput], prompt_text: str, tools: Any) -> None:
        """Move reasoning and tool calls of whole completions out of their texts, in place.

        Args:
            outputs: Completions of one prompt.
            prompt_text: Rendered prompt.
            tools: Tools of the request; tool calls are parsed if there are any.

        Raises:
            RequestFailedError: A parser failed; the message names its plugin.
        """
        for output in outputs:
            parsed = self(prompt_text, with_tools=bool(tools)).read_whole(output.text)
            output.text = parsed.text
            output.reasoning = parsed.reasoning
            output.tool_calls = [
                ToolCall(f"call_{index}", name, arguments)
                for index, (name, arguments) in enumerate(parsed.calls)
            ]


def _build(choice: ParserChoice[P], *arguments: str) -> P:
    return _guard(lambda: choice.parser(*arguments), choice.source)


def _guard(
    call: Callable[[], R], source: Source | None, action: str = "parsing the completion"
) -> R:
    """Call a plugin; log an error that it raises, and raise it as a RequestFailedError."""
    try:
        return call()
    except RequestError:
        raise
    except Exception as error:
        part = "the parser" if source is None else f"plugin {source}"
        raise plugin_failure(error, part, f"while {action}") from error
