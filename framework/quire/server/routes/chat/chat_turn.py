"""One turn of a conversation: what a route makes of it, whatever API the client speaks.

The routes of the other APIs translate their bodies to a `ChatBody`, so that there is one way from
messages to a prompt, from tools to a constraint, and from a completion to its parts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat.parsing.completion_parser import CompletionParser, ParsedCompletion, gather
from quire.frontend.chat.templates.rendered_prompt import RenderedPrompt
from quire.frontend.chat.tools.tool_choice import NO_TOOLS, ToolUse, no_tool_parser, tool_use
from quire.frontend.unknown_fields import UnknownFields
from quire.messages import AdapterRef
from quire.outputs import CompletionOutput
from quire.sampling_params import BeamSearchParams, SamplingParams
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.routes.chat.chat_prompt import RENDERED, rendered_chat
from quire.server.routes.chat.choice_events import ChoiceEvents, FirstCall, one_delta
from quire.server.routes.generation import Generation, IsComplete
from quire.server.wire.bodies import Body
from quire.server.wire.params import prompt_options, sampling_params
from quire.server.wire.protocol import ChatBody
from quire.server.wire.sender import Sender


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A turn of the assistant, ready to be generated.

    Attributes:
        generation: Its completions.
        tools: Tools that it may call.
        opening: Text that the template wrote behind the conversation, or the text of the assistant
            that is continued.
    """

    generation: Generation
    tools: ToolUse
    opening: str

    def events(self) -> list[ChoiceEvents]:
        """Return the events of each choice, for a stream."""
        return [self.choice() for _ in range(self.generation.num_choices)]

    def choice(self, *, keeps_cut_call: bool = True) -> ChoiceEvents:
        """Return the events of one choice; see `ChoiceEvents`."""
        calls = self.generation.params.calls
        is_forced = calls is not None and calls.is_forced
        parsers = self.generation.frontend.completion_parsers
        return ChoiceEvents(
            self._parser(),
            self.tools.allows_parallel,
            keeps_cut_call=keeps_cut_call,
            on_no_call=parsers.warn_of_missed_call if is_forced else None,
        )

    def parsed(self, output: CompletionOutput) -> ParsedCompletion:
        """Return the parts of a whole completion."""
        return gather(self.choice().read(one_delta(output)))

    def _parser(self) -> CompletionParser | None:
        """Return a new parser; None if a completion is text and nothing else."""
        parsers, tools = self.generation.frontend.completion_parsers, self.tools.tools
        if not (tools or parsers.reads_reasoning):
            return None
        return parsers(self.opening, tools=tools, params=self.generation.params)


class ChatTurns:
    """Prepares turns.

    Args:
        frontend: Frontend that serves them.
        budget: Budget of log probabilities.
        unknown: What happens to fields that do not exist.
    """

    def __init__(
        self, frontend: AsyncFrontend, budget: LogprobBudget, unknown: UnknownFields
    ) -> None:
        self.frontend = frontend
        self.unknown = unknown
        self.budget = budget

    async def prepare(
        self, body: Body[ChatBody], sender: Sender, extra_args: dict[str, Any]
    ) -> ChatTurn:
        """Render the messages and check all else; raises a `RequestError` if anything is wrong.

        Args:
            body: Body of the request, or what it was translated to.
            sender: Client that sent the request.
            extra_args: Fields for the samplers.
        """
        adapter, tools, params = self.checked(body.typed, extra_args)
        return await self._turn(body, sender, adapter, tools, params)

    def checked(
        self, body: ChatBody, extra_args: dict[str, Any]
    ) -> tuple[AdapterRef | None, ToolUse, SamplingParams | BeamSearchParams]:
        """Check all of a turn but its messages; return its adapter, its tools and its parameters.

        Args:
            body: Body of the request, or what it was translated to.
            extra_args: Fields for the samplers.

        Raises:
            RequestError: Something is wrong.
        """
        adapter = self.frontend.resolve_adapter(body.model)
        tools = self._tools(body)
        with _limit_as_sent(body):
            params = sampling_params(
                body,
                max_tokens=body.completion_limit,
                logprobs=num_logprobs(body),
                prompt_logprobs=body.prompt_logprobs,
                extra_args=extra_args,
                unknown=self.unknown,
                forced_call=tools.constraint,
                strict_calls=tools.strict_calls,
            )
        return adapter, tools, params

    async def prepare_with(
        self, body: Body[ChatBody], sender: Sender, params: SamplingParams | BeamSearchParams
    ) -> ChatTurn:
        """Do the same with parameters that are given, and are not fields of the body.

        Args:
            body: Messages, tools, and variables of the template.
            sender: Client that sent the request.
            params: Parameters of sampling or of a beam search.
        """
        adapter, tools = self.frontend.resolve_adapter(body.typed.model), self._tools(body.typed)
        return await self._turn(body, sender, adapter, tools, tools.constrained(params))

    async def _turn(
        self,
        body: Body[ChatBody],
        sender: Sender,
        adapter: AdapterRef | None,
        tools: ToolUse,
        params: SamplingParams | BeamSearchParams,
    ) -> ChatTurn:
        """Render the prompt."""
        if isinstance(params, SamplingParams):
            await self.frontend.check_formats(tools, params)
        typed, rendered = body.typed, await self._rendered(body, tools)
        shown = self.frontend.completion_parsers.shown_special_tokens(tools.tools)
        prompt = rendered.as_prompt(
            shown,
            has_tools=bool(tools.tools),
            add_special_tokens=bool(typed.add_special_tokens),
        )
        prompts = [prompt | prompt_options(typed)]
        opening = rendered.opening or ""
        generation = Generation(
            self.frontend,
            self.budget,
            prompts,
            params,
            adapter,
            typed,
            sender,
            until=self._ends(opening, tools, params),
        )
        return ChatTurn(generation, tools, opening)

    def _ends(
        self, opening: str, tools: ToolUse, params: SamplingParams | BeamSearchParams
    ) -> list[IsComplete]:
        """Return what ends each choice with its first call; empty if choices end by themselves."""
        if tools.allows_parallel or tools.constraint is not None:
            return []
        if isinstance(params, BeamSearchParams) or params.best_of is not None:
            return []  # which completions are kept is known at the end
        make = partial(self.frontend.completion_parsers, opening, tools=tools.tools, params=params)
        return [FirstCall(make()).is_in for _ in range(params.n)]

    async def num_prompt_tokens(self, body: Body[ChatBody]) -> int:
        """Return the number of tokens of a prompt, which may be longer than the model takes.

        Other work on long prompts goes on between two parts of the text.

        Raises:
            RequestError: The messages are wrong.
        """
        rendered = await self._rendered(body, self._tools(body.typed), may_be_too_long=True)
        text = rendered.text
        count = partial(
            self.frontend.intake.prompts.count_part,
            text,
            add_special_tokens=bool(body.typed.add_special_tokens),
            breaks=rendered.breaks,
            field="messages",
        )
        num_tokens, end = await self.frontend.lanes.run(len(text), partial(count, 0))
        while end < len(text):
            num_more, end = await self.frontend.lanes.run(len(text), partial(count, end))
            num_tokens += num_more
        return num_tokens

    async def _rendered(
        self, body: Body[ChatBody], tools: ToolUse, *, may_be_too_long: bool = False
    ) -> RenderedPrompt:
        render = partial(
            rendered_chat,
            self.frontend,
            body.typed,
            tools.tools,
            self.unknown,
            may_be_too_long=may_be_too_long,
        )
        return await self.frontend.lanes.run(body.num_bytes // RENDERED, render)

    def _tools(self, body: ChatBody) -> ToolUse:
        if not body.tools and not body.tool_choice:
            return NO_TOOLS
        parsers = self.frontend.completion_parsers
        tools = tool_use(
            body.tools,
            body.tool_choice,
            parsers,
            self.unknown,
            allows_parallel=body.parallel_tool_calls is not False,
        )
        if tools.tools and not parsers.reads_calls:
            raise no_tool_parser()
        return tools


@contextmanager
def _limit_as_sent(body: ChatBody) -> Iterator[None]:
    """Name the limit of a completion in errors as the client has sent it."""
    try:
        yield
    except InvalidRequestError as error:
        sent = "max_completion_tokens"
        if error.param != "max_tokens" or body.max_completion_tokens is None:
            raise
        raise InvalidRequestError(str(error).replace("max_tokens", sent, 1), param=sent) from None


def num_logprobs(body: ChatBody) -> int | None:
    """Return the number of candidates per position; None for no log probabilities.

    Raises:
        InvalidRequestError: Candidates are asked for without `logprobs`.
    """
    if body.logprobs:
        return body.top_logprobs or 0
    for name in ("top_logprobs", "logprob_token_ids"):
        if getattr(body, name):
            raise InvalidRequestError(f"{name} needs logprobs: true", param=name)
    return None
