"""POST /v1/chat/completions: render, generate, parse, and respond in full or as a stream."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend
from quire.outputs import Delta, PromptLogprobs
from quire.sampling_params import StructuredOutputsParams
from quire.server.http.event_stream import EventStream
from quire.server.http.json_response import EncodedResponse, in_thread_if, json_of
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.routes.chat_choice import ChatChoiceBuilder
from quire.server.routes.generation import Envelope, Generation
from quire.server.routes.models import resolve_model
from quire.server.routes.tool_choice import ToolUse, tool_use
from quire.server.wire.bodies import Body, read_body
from quire.server.wire.fields import check_known, sampler_fields, sort_fields
from quire.server.wire.openai_logprobs import chat_logprobs
from quire.server.wire.params import (
    constraint_field,
    includes_usage,
    one_constraint,
    prompt_parts,
    response_constraint,
    sampling_params,
)
from quire.server.wire.protocol import (
    ChatBody,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChunkChoice,
    Usage,
)

_EMPTY = ChatDelta()


@dataclass(frozen=True, slots=True)
class Chat:
    """One chat request, ready to run."""

    generation: Generation
    tools: ToolUse
    num_top_logprobs: int
    with_usage: bool
    envelope: Envelope

    def builders(self) -> list[ChatChoiceBuilder]:
        """Return a new builder for each choice."""
        make_parser = self.generation.frontend.make_completion_parser
        text, with_tools = self.generation.prompts[0]["prompt"], bool(self.tools.tools)
        return [
            ChatChoiceBuilder(
                index, make_parser(text, with_tools=with_tools), self.tools.allows_parallel
            )
            for index in range(self.generation.num_choices)
        ]


class ChatRoute:
    """Endpoint of /v1/chat/completions."""

    def __init__(self, frontend: AsyncFrontend, budget: LogprobBudget) -> None:
        self._frontend = frontend
        self._budget = budget

    async def create(self, request: Request) -> Response:
        """Return the response to a conversation, in full or as a stream."""
        body = await read_body(request, ChatBody)
        extras = sort_fields(body.raw, ChatBody, sampler_fields(self._frontend))
        chat = await self._prepare(body, extras.for_samplers)
        headers, release = extras.headers(), chat.generation.release
        if body.typed.stream:
            request_id = request.scope["quire_request_id"]
            return EventStream(_events(chat), headers, request_id, on_close=release)
        return EncodedResponse(partial(_full_response, chat), headers, release)

    async def _prepare(self, body: Body[ChatBody], extra_args: dict[str, Any]) -> Chat:
        typed = body.typed
        check_known(
            body.raw.get("structured_outputs"), StructuredOutputsParams, "structured_outputs"
        )
        resolved = resolve_model(self._frontend, typed.model)
        tools = tool_use(typed, self._frontend)
        if tools.tools and not self._frontend.make_completion_parser.reads_calls:
            raise InvalidRequestError(
                "this model has no tool-call parser, so its calls could not be read; start the "
                "server with --tool-call-parser NAME, or send tool_choice none",
                param="tools",
            )
        constraint = one_constraint(
            response_constraint(typed.response_format), typed.structured_outputs, tools.constraint
        )
        params = sampling_params(
            typed,
            max_tokens=_max_tokens(typed),
            logprobs=_num_logprobs(typed),
            prompt_logprobs=typed.prompt_logprobs,
            structured_outputs=constraint,
            extra_args=extra_args,
        )
        if body.is_large:
            text = await asyncio.to_thread(self._render, typed, tools.tools)
        else:
            text = self._render(typed, tools.tools)
        return Chat(
            Generation(
                self._frontend,
                self._budget,
                [prompt_parts(text, typed, False)],
                params,
                resolved.adapter,
                constraint_field(typed.response_format),
                priority=typed.priority,
                timeout_s=typed.timeout_s,
            ),
            tools,
            typed.top_logprobs or 0,
            includes_usage(typed),
            Envelope.fresh("chatcmpl", resolved.name),
        )

    def _render(self, body: ChatBody, tools: list[dict[str, Any]]) -> str:
        return self._frontend.render_chat(body.messages, tools or None, _template_kwargs(body))


def _max_tokens(body: ChatBody) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _num_logprobs(body: ChatBody) -> int | None:
    """Return the number of candidates per position; None for no log probabilities.

    Raises:
        InvalidRequestError: `top_logprobs` is given without `logprobs`.
    """
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return None


def _template_kwargs(body: ChatBody) -> dict[str, Any]:
    """Return further variables for the chat template, which checks them."""
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    return effort | (body.chat_template_kwargs or {})


def _logprobs(chat: Chat, delta: Delta) -> ChatLogprobs | None:
    return chat_logprobs(delta, chat.num_top_logprobs, chat.generation.frontend.tokenizer)


async def _full_response(chat: Chat) -> bytes:
    builders = chat.builders()
    of_prompt: PromptLogprobs = []
    async with aclosing(chat.generation.deltas()) as deltas:
        async for index, delta in deltas:
            builders[index].read(delta, _logprobs(chat, delta))
            of_prompt += delta.prompt_logprobs or ()
    completion = ChatCompletion(
        id=chat.envelope.id,
        created=chat.envelope.created,
        model=chat.envelope.model,
        choices=[builder.choice() for builder in builders],
        usage=chat.generation.usage(),
        prompt_logprobs=of_prompt or msgspec.UNSET,
    )
    return await in_thread_if(chat.generation.is_large, partial(json_of, completion))


async def _events(chat: Chat) -> AsyncGenerator[bytes]:
    builders = chat.builders()
    role_sent = [False] * len(builders)
    async with aclosing(chat.generation.deltas()) as deltas:
        async for index, delta in deltas:
            if not role_sent[index]:
                role_sent[index] = True
                opening = ChatDelta(role="assistant", content="")
                yield _chunk(chat, ChunkChoice(index=index, delta=opening))
            if delta.prompt_logprobs is not None:
                choice = ChunkChoice(index=index, delta=_EMPTY)
                chunk = partial(_chunk, chat, choice, prompt_logprobs=delta.prompt_logprobs)
                yield await in_thread_if(chat.generation.is_large_delta(delta), chunk)
            logprobs = _logprobs(chat, delta)
            piece = builders[index].read(delta, logprobs)
            finish_reason = builders[index].finish_reason
            if piece == _EMPTY and logprobs is None and finish_reason is None:
                continue  # the parser holds text back
            choice = ChunkChoice(
                index=index, delta=piece, logprobs=logprobs, finish_reason=finish_reason
            )
            if finish_reason is not None and delta.stop_reason is not None:
                choice.stop_reason = delta.stop_reason
            yield _chunk(chat, choice)
    if chat.with_usage:
        yield _chunk(chat, usage=chat.generation.usage())


def _chunk(
    chat: Chat,
    choice: ChunkChoice | None = None,
    usage: Usage | None = None,
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET,
) -> bytes:
    """Return one event; it has a field `usage` only with `include_usage`."""
    chunk = ChatChunk(
        id=chat.envelope.id,
        created=chat.envelope.created,
        model=chat.envelope.model,
        choices=[] if choice is None else [choice],
        prompt_logprobs=prompt_logprobs,
    )
    if chat.with_usage:
        chunk.usage = usage
    return json_of(chunk)
