"""POST /v1/completions: completions of one or several prompts, as text or token ids."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequestError, PromptTooLongError
from quire.frontend.async_frontend import AsyncFrontend
from quire.outputs import Delta
from quire.sampling_params import StructuredOutputsParams
from quire.server.http.event_stream import EventStream
from quire.server.http.json_response import EncodedResponse, in_thread_if, json_of
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.routes.completion_choice import (
    CompletionChoiceBuilder,
    ResponseOptions,
    full_choice,
)
from quire.server.routes.generation import Envelope, Generation
from quire.server.routes.models import resolve_model
from quire.server.wire.bodies import Body, read_body
from quire.server.wire.fields import check_known, sampler_fields, sort_fields
from quire.server.wire.params import (
    constraint_field,
    includes_usage,
    one_constraint,
    prompt_parts,
    response_constraint,
    sampling_params,
)
from quire.server.wire.protocol import Completion, CompletionBody, CompletionChoice, Usage

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 256
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class CompletionRun:
    """One completion request, ready to run."""

    generation: Generation
    options: ResponseOptions
    with_usage: bool
    envelope: Envelope

    def builders(self) -> list[CompletionChoiceBuilder]:
        """Return a new builder for each choice."""
        indexes = range(self.generation.num_choices)
        return [CompletionChoiceBuilder(index, self.generation, self.options) for index in indexes]


class CompletionRoute:
    """Endpoint of /v1/completions."""

    def __init__(self, frontend: AsyncFrontend, budget: LogprobBudget) -> None:
        self._frontend = frontend
        self._budget = budget

    async def create(self, request: Request) -> Response:
        """Return the completions of the prompts, in full or as a stream."""
        body = await read_body(request, CompletionBody)
        extras = sort_fields(body.raw, CompletionBody, sampler_fields(self._frontend))
        if body.is_large:
            run = await asyncio.to_thread(self._prepare, body, extras.for_samplers)
        else:
            run = self._prepare(body, extras.for_samplers)
        headers, release = extras.headers(), run.generation.release
        if body.typed.stream:
            request_id = request.scope["quire_request_id"]
            return EventStream(_events(run), headers, request_id, on_close=release)
        return EncodedResponse(partial(_full_response, run), headers, release)

    def _prepare(self, body: Body[CompletionBody], extra_args: dict[str, Any]) -> CompletionRun:
        typed = body.typed
        check_known(
            body.raw.get("structured_outputs"), StructuredOutputsParams, "structured_outputs"
        )
        resolved = resolve_model(self._frontend, typed.model)
        is_prompt_only = bool(typed.echo) and typed.max_tokens == 0
        params = sampling_params(
            typed,
            max_tokens=1 if is_prompt_only else _max_tokens(typed),
            logprobs=typed.logprobs,
            prompt_logprobs=_num_prompt_logprobs(typed),
            structured_outputs=one_constraint(
                response_constraint(typed.response_format), typed.structured_outputs
            ),
            extra_args=extra_args,
        )
        _check_count(typed.prompt, params.n)
        given = split_prompts(typed.prompt)
        self._check_lengths(given)
        prompts = [prompt_parts(prompt, typed, True) for prompt in given]
        return CompletionRun(
            Generation(
                self._frontend,
                self._budget,
                prompts,
                params,
                resolved.adapter,
                constraint_field(typed.response_format),
                priority=typed.priority,
                timeout_s=typed.timeout_s,
                is_prompt_only=is_prompt_only,
            ),
            ResponseOptions(typed.logprobs, bool(typed.echo), typed.prompt_logprobs is not None),
            includes_usage(typed),
            Envelope.fresh("cmpl", resolved.name),
        )

    def _check_lengths(self, prompts: list[str | list[int]]) -> None:
        """Refuse lists of token ids that cannot fit, before each id is checked."""
        limit = self._frontend.max_model_len
        for prompt in prompts:
            if isinstance(prompt, list) and len(prompt) >= limit:
                raise PromptTooLongError(
                    f"the prompt has {len(prompt)} tokens and leaves no room for a completion: "
                    f"this model takes {limit} tokens, prompt and completion together",
                    param="prompt",
                )


def split_prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """Return each prompt of the field `prompt`: text, texts, token ids, or lists of token ids.

    Raises:
        InvalidRequestError: The field is none of these, or an empty list.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("prompt is an empty list", param="prompt")
    if all(type(item) is int for item in prompt):
        return [prompt]
    if all(isinstance(item, str) for item in prompt):
        return prompt
    if all(isinstance(item, list) and all(type(i) is int for i in item) for item in prompt):
        return prompt
    raise InvalidRequestError(
        "prompt must be a string, a list of strings, a list of token ids or a list of such lists",
        param="prompt",
    )


async def _full_response(run: CompletionRun) -> bytes:
    builders = run.builders()
    pieces: list[list[CompletionChoice]] = [[] for _ in builders]
    async with aclosing(run.generation.deltas()) as deltas:
        async for index, delta in deltas:
            read = partial(builders[index].read, delta)
            piece = await in_thread_if(run.generation.is_large_delta(delta), read)
            if piece is not None:
                pieces[index].append(piece)
    return await in_thread_if(run.generation.is_large, partial(_encode_full_response, run, pieces))


def _encode_full_response(
    run: CompletionRun, pieces: Sequence[Sequence[CompletionChoice]]
) -> bytes:
    return json_of(_completion(run, [*map(full_choice, pieces)], run.generation.usage()))


async def _events(run: CompletionRun) -> AsyncGenerator[bytes]:
    builders = run.builders()
    usage = None if run.with_usage else UNSET
    async with aclosing(run.generation.deltas()) as deltas:
        async for index, delta in deltas:
            event = partial(_event, run, builders[index], delta, usage)
            encoded = await in_thread_if(run.generation.is_large_delta(delta), event)
            if encoded is not None:
                yield encoded
    if run.with_usage:
        yield json_of(_completion(run, [], run.generation.usage()))


def _event(
    run: CompletionRun, builder: CompletionChoiceBuilder, delta: Delta, usage: UnsetType | None
) -> bytes | None:
    piece = builder.read(delta)
    return None if piece is None else json_of(_completion(run, [piece], usage))


def _completion(
    run: CompletionRun, choices: list[CompletionChoice], usage: Usage | UnsetType | None
) -> Completion:
    envelope = run.envelope
    return Completion(
        id=envelope.id,
        created=envelope.created,
        model=envelope.model,
        choices=choices,
        usage=usage,
    )


def _max_tokens(body: CompletionBody) -> int:
    return DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens


def _num_prompt_logprobs(body: CompletionBody) -> int | None:
    """Return the number of candidates per position of the prompt; None for none.

    Raises:
        InvalidRequestError: `echo` asks for them with `n` above 1: each choice would repeat them.
    """
    if not body.echo or body.logprobs is None:
        return body.prompt_logprobs
    if (body.n or 1) > 1:
        raise InvalidRequestError(
            "echo with logprobs would repeat the log probabilities of the prompt in each choice; "
            "send n: 1, or ask for prompt_logprobs",
            param="echo",
        )
    return max(body.logprobs, body.prompt_logprobs or 0)


def _check_count(prompt: str | list[Any], n: int) -> None:
    """Check the number of prompts and completions before anything is copied."""
    is_many = isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is not int
    num_prompts = len(prompt) if is_many else 1
    if num_prompts > MAX_PROMPTS or num_prompts * n > MAX_CHOICES:
        raise InvalidRequestError(
            f"a request takes at most {MAX_PROMPTS} prompts and {MAX_CHOICES} completions, got "
            f"{num_prompts} prompts of {n} completions",
            param="prompt",
        )
