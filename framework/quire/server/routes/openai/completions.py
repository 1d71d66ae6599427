"""POST /v1/completions: completions of one or several prompts, as text or token ids."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.unknown_fields import UnknownFields
from quire.outputs import CompletionOutput, Delta
from quire.server.http.json_response import in_thread_if, json_of
from quire.server.http.logprob_budget import LogprobBudget
from quire.server.routes.generation import Generation
from quire.server.routes.openai.completion_choice import CompletionChoiceBuilder, ResponseOptions
from quire.server.routes.respond import respond
from quire.server.wire.bodies import Body
from quire.server.wire.params import StreamUsage, prompt_with_options, sampling_params, stream_usage
from quire.server.wire.protocol import Completion, CompletionBody, CompletionChoice, Usage
from quire.server.wire.sender import Sender

MAX_PROMPTS = 256
MAX_CHOICES = 1024


class CompletionRoute:
    """Endpoint of /v1/completions."""

    def __init__(
        self, frontend: AsyncFrontend, budget: LogprobBudget, unknown: UnknownFields
    ) -> None:
        self._frontend = frontend
        self._budget = budget
        self._unknown = unknown

    async def create(self, request: Request) -> Response:
        """Return the completions of the prompts, in full or as a stream."""
        return await respond(request, self._frontend, CompletionBody, self._unknown, self._prepare)

    async def _prepare(
        self, body: Body[CompletionBody], sender: Sender, extra_args: dict[str, Any]
    ) -> "CompletionRun":
        if body.is_large:
            return await asyncio.to_thread(self._run, body.typed, sender, extra_args)
        return self._run(body.typed, sender, extra_args)

    def _run(
        self, body: CompletionBody, sender: Sender, extra_args: dict[str, Any]
    ) -> "CompletionRun":
        adapter = self._frontend.resolve_adapter(body.model)
        is_prompt_only = bool(body.echo) and body.max_tokens == 0
        params = sampling_params(
            body,
            max_tokens=1 if is_prompt_only else body.completion_limit,
            logprobs=body.logprobs,
            prompt_logprobs=_num_prompt_logprobs(body),
            extra_args=extra_args,
            unknown=self._unknown,
        )
        _check_count(body.prompt, params.num_generated)
        prompts = [prompt_with_options(prompt, body) for prompt in split_prompts(body.prompt)]
        generation = Generation(
            self._frontend,
            self._budget,
            prompts,
            params,
            adapter,
            body,
            sender,
            is_prompt_only=is_prompt_only,
        )
        return CompletionRun(
            generation,
            ResponseOptions(
                generation.num_top_logprobs,
                bool(body.echo),
                body.prompt_logprobs is not None,
                bool(body.return_token_ids),
                bool(body.return_tokens_as_token_ids),
            ),
            stream_usage(body),
            generation.envelope("cmpl"),
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
    both = (body.logprobs, body.prompt_logprobs or 0)
    return -1 if -1 in both else max(both)


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


class CompletionRun(msgspec.Struct, frozen=True):
    """One completion request, ready to run."""

    generation: Generation
    options: ResponseOptions
    stream_usage: StreamUsage
    envelope: dict[str, Any]

    async def whole(self, outputs: Sequence[CompletionOutput]) -> bytes:
        """Return the full response as JSON."""
        make = partial(self._whole, outputs)
        return await in_thread_if(self.generation.is_large, make)

    def _whole(self, outputs: Sequence[CompletionOutput]) -> bytes:
        choices = [
            builder.read_whole(output, self.generation.prompt_logprobs(builder.index))
            for builder, output in zip(self._builders(), outputs, strict=True)
        ]
        return json_of(self._completion(choices, self.generation.usage()))

    async def events(self) -> AsyncGenerator[bytes]:
        """Generate; yield the pieces of a stream as JSON."""
        builders = self._builders()
        async with aclosing(self.generation.deltas()) as deltas:
            async for index, delta in deltas:
                event = partial(self._event, builders[index], delta)
                encoded = await in_thread_if(self.generation.is_large_delta(delta), event)
                if encoded is not None:
                    yield encoded
        if self.stream_usage != "none":
            yield json_of(self._completion([], self.generation.usage()))

    def _builders(self) -> list[CompletionChoiceBuilder]:
        indexes = range(self.generation.num_choices)
        return [CompletionChoiceBuilder(index, self.generation, self.options) for index in indexes]

    def _event(self, builder: CompletionChoiceBuilder, delta: Delta) -> bytes | None:
        piece = builder.read(delta)
        return None if piece is None else json_of(self._completion([piece], self._usage()))

    def _usage(self) -> Usage | UnsetType | None:
        """Return the field `usage` of an event that is not the last."""
        if self.stream_usage == "none":
            return UNSET
        return self.generation.usage() if self.stream_usage == "all" else None

    def _completion(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None
    ) -> Completion:
        return Completion(**self.envelope, choices=choices, usage=usage)
