"""One pipeline reads an answer: thinking is split off first, then calls; both while it streams."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quire.errors import RequestError, RequestFailedError
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

logger = logging.getLogger(__name__)

CompletionEvent = ReasoningDelta | ToolEvent
P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ParserChoice(Generic[P]):
    """A parser that was chosen, and the plugin that it comes from."""

    parser: type[P]
    source: Source


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """A whole answer, taken apart.

    Attributes:
        text: What the user reads.
        reasoning: The thinking; None if there was none.
        calls: Name and arguments of each call that ended. A call that began and broke off is none:
            its text is part of `text`.
    """

    text: str
    reasoning: str | None
    calls: tuple[tuple[str, str], ...]


class CompletionParser:
    """Reads one answer.

    Args:
        reasoning_parser: Splits off the thinking; None if the model does not think.
        tool_parser: Splits off calls; None if the request offers no tools.
        reasoning_source: Whom to name when the first one fails.
        tool_source: Whom to name when the second one fails.
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
        """Take the next piece of the answer; return what is certain by now.

        Raises:
            RequestFailedError: A parser failed; the message names its plugin.
        """
        if self._reasoning is None:
            return [*self._read_text(delta)]
        parser = self._reasoning
        events = _guard(lambda: parser.feed(delta), self._reasoning_source)
        return [*self._read_reasoning(events)]

    def close(self) -> list[CompletionEvent]:
        """Return what was held back, when the answer is over.

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
        """Take a whole answer apart; the parser is used up then.

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
    """Join all events of one answer."""
    texts: list[str] = []
    thoughts: list[str] = []
    open_calls: dict[int, tuple[str, list[str]]] = {}
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case TextDelta(text):
                texts.append(text)
            case ReasoningDelta(text):
                thoughts.append(text)
            case ToolCallStart(index, name):
                open_calls[index] = (name, [])
            case ToolCallArguments(index, piece):
                open_calls[index][1].append(piece)
            case ToolCallEnd(index):
                name, pieces = open_calls[index]
                calls.append((name, "".join(pieces)))
    return ParsedCompletion("".join(texts), "".join(thoughts) if thoughts else None, tuple(calls))


def parse_completion(output: CompletionOutput, parser: CompletionParser) -> None:
    """Move thinking and tool calls of a whole answer out of its text, in place."""
    parsed = parser.read_whole(output.text)
    output.text = parsed.text
    output.reasoning = parsed.reasoning
    output.tool_calls = [
        ToolCall(f"call_{index}", name, arguments)
        for index, (name, arguments) in enumerate(parsed.calls)
    ]


class CompletionParsers:
    """Makes the parser of each request.

    Args:
        reasoning: The reasoning parser in use, if any.
        tools: The tool parser in use, if any.
    """

    def __init__(
        self,
        reasoning: ParserChoice[ReasoningParser] | None = None,
        tools: ParserChoice[ToolParser] | None = None,
    ) -> None:
        self.reasoning = reasoning
        self.tools = tools

    @property
    def reads_calls(self) -> bool:
        """Whether there is a tool parser: without one, no answer holds a call."""
        return self.tools is not None

    def call_grammar(self, functions: Sequence[dict[str, Any]]) -> CallGrammar | None:
        """Return the shape of whole answers that are a call of one of `functions`.

        Args:
            functions: The `function` objects of OpenAI's tools.

        Returns:
            None if there is no tool parser, or if it cannot force a call.

        Raises:
            RequestError: The parser refuses the functions.
            RequestFailedError: The parser failed; the message names its plugin.
        """
        if (tools := self.tools) is None:
            return None
        return _guard(
            lambda: tools.parser.call_grammar(functions, at_least_one=True),
            tools.source,
            "wrote the grammar of a call",
        )

    def __call__(self, prompt_text: str, *, with_tools: bool) -> CompletionParser:
        """Return a parser for one answer.

        Args:
            prompt_text: The rendered prompt: it may have opened the thinking already.
            with_tools: Whether calls are looked for: the request offers tools.

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


def _build(choice: ParserChoice[P], *arguments: str) -> P:
    return _guard(lambda: choice.parser(*arguments), choice.source)


def _guard(call: Callable[[], R], source: Source | None, doing: str = "read the answer") -> R:
    """Call a plugin; whatever it raises ends this request and is told without a traceback."""
    try:
        return call()
    except RequestError:
        raise
    except Exception as error:
        who = "the parser" if source is None else f"plugin {source}"
        logger.exception("%s failed while it %s", who, doing)
        raise RequestFailedError(f"{who} failed while it {doing}; the log says how") from error
