"""The parsers of a model's completions: a new parser for each, and what they ask of its text."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from quire.call_grammar import checked
from quire.frontend.chat.parsing.call_ids import is_call_id
from quire.frontend.chat.parsing.completion_parser import CompletionParser
from quire.frontend.chat.parsing.parser_guard import ParserOrigin, guarded
from quire.frontend.chat.parsing.reasoning_stage import ReasoningStage
from quire.frontend.chat.parsing.tool_stage import ToolStage
from quire.frontend.chat.tool_schemas import normalized
from quire.interfaces.markers import Markers
from quire.interfaces.reasoning import ReasoningParser, ReasoningParserCapabilities
from quire.interfaces.tool_parsing import CallGrammar, ToolParser, ToolParserCapabilities
from quire.outputs import CompletionOutput
from quire.plugins.registry import Source
from quire.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

P = TypeVar("P")
C = TypeVar("C")

DEFAULTS = SamplingParams()
Tools = Sequence[Mapping[str, Any]] | None  # in OpenAI's format


@dataclass(frozen=True, slots=True)
class ParserChoice(Generic[P, C]):
    """A chosen parser class, the plugin that provides it, and its capabilities.

    Attributes:
        title: Kind and name of the parser, for the log.
    """

    parser: type[P]
    source: Source
    capabilities: C
    title: str = "the parser"

    @property
    def origin(self) -> ParserOrigin:
        """Origin of the parser, for errors."""
        return ParserOrigin(self.source, self.title)


ReasoningParserChoice = ParserChoice[ReasoningParser, ReasoningParserCapabilities]
ToolParserChoice = ParserChoice[ToolParser, ToolParserCapabilities]


class CompletionParsers:
    """Makes the parser of each completion.

    Args:
        reasoning: Reasoning parser in use, if any.
        tools: Tool parser in use, if any.
        special_tokens: Texts of the tokenizer's special tokens by their ids.

    Attributes:
        reads_reasoning: Whether there is a reasoning parser.
        reads_calls: Whether there is a tool parser; without one, tool calls are not parsed.
    """

    def __init__(
        self,
        reasoning: ReasoningParserChoice | None = None,
        tools: ToolParserChoice | None = None,
        special_tokens: Mapping[int, str] | None = None,
    ) -> None:
        self.reasoning = reasoning
        self.tools = tools
        self.reads_reasoning = reasoning is not None
        self.reads_calls = tools is not None
        self._has_missed_calls = False
        self._shown = {
            with_tools: _marked(special_tokens or {}, self._markers(with_tools))
            for with_tools in (False, True)
        }
        self._reasoning_ends = None if reasoning is None else _ends(reasoning.capabilities)
        openers = () if tools is None else tools.capabilities.call_openers
        self._call_openers = Markers(openers) if openers else None
        self._removed = {
            with_tools: Markers(shown.values()) if shown else None
            for with_tools, shown in self._shown.items()
        }

    def shown_special_tokens(self, tools: Tools) -> frozenset[int]:
        """Return the ids of special tokens that the parsers of a completion must see.

        Args:
            tools: Tools of the request.
        """
        return frozenset(self._shown[bool(tools)])

    def call_grammar(
        self, functions: Sequence[dict[str, Any]], *, at_least_one: bool
    ) -> CallGrammar | None:
        """Return the grammar of completions with calls of `functions`.

        Args:
            functions: `function` objects of tools that were checked; the parser gets them with
                `parameters` that are always an object's schema.
            at_least_one: True if a completion consists of calls; False if it is free text in which
                calls may be.

        Returns:
            None if there is no tool parser, or if it has no such grammar.

        Raises:
            RequestError: The parser refuses the functions.
            RequestFailedError: The parser failed; the message names its plugin.
        """
        if (tools := self.tools) is None:
            return None
        given = normalized(functions)
        return guarded(
            lambda: checked(tools.parser.call_grammar(given, at_least_one=at_least_one)),
            tools.origin,
            "building the grammar of tool calls",
        )

    def warn_of_missed_call(self) -> None:
        """Log, once, that a completion of a grammar of calls was read as text."""
        if self._has_missed_calls or self.tools is None:
            return
        self._has_missed_calls = True
        logger.warning(
            "%s: a completion that had to call a tool (tool_choice) was read as text, so "
            "its client got no call. The parser does not read what its grammar writes; mend "
            "one of the two, or start with another --tool-call-parser (logged once)",
            self.tools.origin.logged_part,
        )

    def prompt_call_id(self, call_id: str, name: str, number: int) -> str:
        """Return the id that the chat template gets for a call of an earlier turn.

        The arguments are those of `ToolParser.prompt_call_id`.

        Raises:
            RequestFailedError: The parser failed; the message names its plugin.
        """
        if (tools := self.tools) is None:
            return call_id
        make = tools.parser.prompt_call_id
        return guarded(
            lambda: _checked_id(make(call_id, name, number), call_id),
            tools.origin,
            "making the id of a call",
        )

    def __call__(
        self,
        prompt_text: str,
        *,
        tools: Tools,
        params: SamplingParams = DEFAULTS,
    ) -> CompletionParser:
        """Return a parser for one completion.

        Args:
            prompt_text: Rendered prompt, which may contain the start of the reasoning.
            tools: Tools of the request; tool calls are parsed if there are any.
            params: Parameters of the request. Where they force a call behind the reasoning that
                the prompt has opened, a call in the reasoning is none.

        Raises:
            RequestFailedError: A plugin's parser cannot be built.
        """
        calls = params.calls
        reads_calls = self.tools is not None and self.tools.capabilities.calls_end_reasoning
        return CompletionParser(
            self._reasoning_stage(prompt_text),
            self._tool_stage(tools) if tools else None,
            reads_calls_first=reads_calls,
            follows_reasoning=calls is not None and calls.follow_reasoning,
            call_openers=self._call_openers,
            removed=self._removed[bool(tools)] if params.skip_special_tokens else None,
        )

    def split(
        self,
        outputs: Iterable[CompletionOutput],
        prompt_text: str,
        tools: Tools,
        params: SamplingParams = DEFAULTS,
    ) -> None:
        """Move reasoning and tool calls of whole completions out of their texts, in place.

        Args:
            outputs: Completions of one prompt.
            prompt_text: Rendered prompt.
            tools: Tools of the request; tool calls are parsed if there are any.
            params: Parameters of the request.

        Raises:
            RequestFailedError: A parser failed; the message names its plugin.
        """
        for output in outputs:
            parser = self(prompt_text, tools=tools, params=params)
            parsed = parser.read_whole(output.text, is_cut=output.finish_reason != "stop")
            output.text = parsed.text
            output.reasoning = parsed.reasoning
            output.tool_calls = [*parsed.calls]

    def _reasoning_stage(self, prompt_text: str) -> ReasoningStage | None:
        if (choice := self.reasoning) is None:
            return None
        return ReasoningStage(
            choice.parser,
            prompt_text,
            choice.origin,
            ends=self._reasoning_ends,
            is_content=choice.capabilities.is_content,
        )

    def _tool_stage(self, tools: Sequence[Mapping[str, Any]]) -> ToolStage | None:
        if (choice := self.tools) is None:
            return None
        functions = [dict(tool["function"]) for tool in tools]
        parser = guarded(lambda: choice.parser.for_tools(functions), choice.origin)
        return ToolStage(parser, choice.origin, choice.capabilities.call_id_length)

    def _markers(self, with_tools: bool) -> Sequence[str]:
        tools = self.tools if with_tools else None
        return [
            *(() if self.reasoning is None else self.reasoning.capabilities.markers),
            *(() if tools is None else tools.capabilities.markers),
        ]


def _ends(declared: ReasoningParserCapabilities) -> Markers | None:
    """Return the texts at which reasoning may end; None: the parser does not declare them."""
    if declared.end_marker is None:
        return None
    return Markers({declared.end_marker, *declared.end_spellings, *declared.markers})


def _marked(special_tokens: Mapping[int, str], markers: Sequence[str]) -> dict[int, str]:
    """Return the special tokens that are part of a marker."""
    return {
        token_id: text
        for token_id, text in special_tokens.items()
        if text and any(text in marker for marker in markers)
    }


def _checked_id(call_id: str, given: str) -> str:
    if call_id != given and not is_call_id(call_id):
        raise ValueError(f"the id of a call cannot be {call_id!r:.100}")
    return call_id
