"""A conversation as a prompt with its parameters, and how its completions are read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.chat.parsing.completion_parser import CompletionParser
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers, Tools
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.chat.tools.tool_choice import NO_TOOLS, Choice, ToolUse, tool_use
from quire.frontend.json_limits import check_json
from quire.outputs import CompletionOutput, Messages, Prompt
from quire.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A conversation, ready to be generated.

    Attributes:
        prompt: Prompt of the next message.
        params: Parameters, with the constraint of its calls.
        tools: Tools that it may call.
    """

    prompt: Prompt
    params: SamplingParams
    tools: ToolUse
    _opening: str
    _parsers: CompletionParsers

    @classmethod
    def of(
        cls,
        messages: Messages,
        params: SamplingParams,
        template: ChatTemplate,
        parsers: CompletionParsers,
        *,
        tools: ToolUse = NO_TOOLS,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> "PreparedChat":
        """Render a conversation with its tools.

        Args:
            messages: Messages in OpenAI's format.
            params: Parameters as given.
            template: Chat template of the model.
            parsers: Parsers of the completions.
            tools: Tools that it may call, as `read_tools` returns them.
            template_kwargs: Additional variables for the template.

        Raises:
            RequestError: The conversation is invalid, or the parameters contradict the tools or
                are those of a beam search.
        """
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"a chat takes SamplingParams, got {type(params).__name__}", param="sampling_params"
            )
        params = tools.constrained(params)
        rendered = template.render(
            messages,
            tools.tools or None,
            template_kwargs=template_kwargs,
            finds_opening=parsers.reads_reasoning,
        )
        shown = parsers.shown_special_tokens(tools.tools)
        prompt = rendered.as_prompt(shown, has_tools=bool(tools.tools))
        return cls(prompt, params, tools, rendered.opening or "", parsers)

    def parser(self) -> CompletionParser:
        """Return a new parser for one completion; raises what `CompletionParsers` raises."""
        return self._parsers(self._opening, tools=self.tools.tools, params=self.params)

    def split(self, outputs: Iterable[CompletionOutput]) -> None:
        """Move reasoning and tool calls out of the texts of whole completions, in place."""
        self._parsers.split(outputs, self._opening, self.tools.tools, self.params)


def read_tools(tools: Tools, choice: Choice, parsers: CompletionParsers) -> ToolUse:
    """Read the tools of a program, which may be anything: their values are limited first.

    Args:
        tools: Tools in OpenAI's format.
        choice: Choice among them in OpenAI's format; None: auto.
        parsers: Parsers of the completions.

    Raises:
        RequestError: The tools or the choice among them are invalid.
    """
    if isinstance(tools, Sequence) and not isinstance(tools, str):
        tools = [dict(tool) if isinstance(tool, Mapping) else tool for tool in tools]
        check_json(tools, "tools")
    return tool_use(tools, choice, parsers)
