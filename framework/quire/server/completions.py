"""POST /v1/completions: text after text, or after token ids, for one prompt or many."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequestError, PromptTooLongError, RequestFailedError
from quire.frontend.async_frontend import AsyncFrontend
from quire.outputs import Delta
from quire.sampling_params import StructuredOutputsParams
from quire.server.answers import json_response
from quire.server.bodies import Body, read_body
from quire.server.disconnect import run_while_connected
from quire.server.fields import check_known, sampler_fields, sort_fields
from quire.server.generation import Envelope, Generation
from quire.server.logprobs import completion_logprobs, joined
from quire.server.models import choose
from quire.server.params import (
    form_field,
    one_form,
    prompt_parts,
    response_form,
    sampling_params,
    wants_usage,
)
from quire.server.protocol import (
    Completion,
    CompletionBody,
    CompletionChoice,
    FinishReason,
    Usage,
)
from quire.server.sse import EventStream

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPTS = 256
MAX_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class Run:
    """One completion request, ready to run."""

    generation: Generation
    num_top_logprobs: int
    with_echo: bool
    with_usage: bool
    envelope: Envelope

    def answers(self) -> list["Answer"]:
        """Return a fresh reader for each choice."""
        n = self.generation.n
        return [Answer(index, self, index // n) for index in range(self.generation.num_choices)]


class CompletionRoute:
    """The endpoint."""

    def __init__(self, frontend: AsyncFrontend) -> None:
        self._frontend = frontend

    async def create(self, request: Request) -> Response:
        """Complete the prompts."""
        body = await read_body(request, CompletionBody)
        extras = sort_fields(body.raw, CompletionBody, sampler_fields(self._frontend))
        if body.is_large:
            run = await asyncio.to_thread(self._prepare, body, extras.for_samplers)
        else:
            run = self._prepare(body, extras.for_samplers)
        if body.typed.stream:
            return EventStream(_events(run), extras.headers(), request.scope["quire_request_id"])
        answer = await run_while_connected(_whole(run), request.receive)
        return json_response(answer, headers=extras.headers())

    def _prepare(self, body: Body[CompletionBody], extra_args: dict[str, Any]) -> Run:
        typed = body.typed
        check_known(
            body.raw.get("structured_outputs"), StructuredOutputsParams, "structured_outputs"
        )
        chosen = choose(self._frontend, typed.model)
        if typed.echo and typed.logprobs is not None:
            raise InvalidRequestError(
                "echo with logprobs is not served: prompts have no log probabilities here",
                param="echo",
            )
        params = sampling_params(
            typed,
            max_tokens=DEFAULT_MAX_TOKENS if typed.max_tokens is None else typed.max_tokens,
            logprobs=typed.logprobs,
            structured_outputs=one_form(
                response_form(typed.response_format), typed.structured_outputs
            ),
            extra_args=extra_args,
        )
        _check_count(typed.prompt, params.n)
        given = split_prompts(typed.prompt)
        self._check_lengths(given)
        prompts = [prompt_parts(prompt, typed, True) for prompt in given]
        return Run(
            Generation(
                self._frontend, prompts, params, chosen.adapter, form_field(typed.response_format)
            ),
            typed.logprobs or 0,
            bool(typed.echo),
            wants_usage(typed),
            Envelope.fresh("cmpl", chosen.name),
        )

    def _check_lengths(self, prompts: list[str | list[int]]) -> None:
        """Refuse ids that cannot fit before anybody looks at each of them."""
        limit = self._frontend.max_model_len
        for prompt in prompts:
            if isinstance(prompt, list) and len(prompt) >= limit:
                raise PromptTooLongError(
                    f"the prompt has {len(prompt)} tokens and leaves no room for an answer: this "
                    f"model takes {limit} tokens, prompt and answer together",
                    param="prompt",
                )


def split_prompts(prompt: str | list[Any]) -> list[str | list[int]]:
    """Return each prompt of the field `prompt`: a text, texts, ids, or lists of ids.

    Raises:
        InvalidRequestError: It is none of these, or empty.
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


@dataclass
class Answer:
    """Reads one choice."""

    index: int
    run: Run
    prompt: int  # which of the prompts
    pieces: list[CompletionChoice] = field(default_factory=list)
    num_characters: int = 0

    def read(self, delta: Delta) -> CompletionChoice | None:
        """Take one delta; return what it adds, if anything is to be seen."""
        tokenizer = self.run.generation.frontend.tokenizer
        logprobs, self.num_characters = completion_logprobs(
            delta, self.run.num_top_logprobs, self.num_characters, tokenizer
        )
        piece = CompletionChoice(
            index=self.index,
            text=self._echo() + delta.text,
            logprobs=logprobs,
            finish_reason=_public(delta),
            stop_reason=delta.stop_reason,
        )
        is_silent = not piece.text and logprobs is None and piece.finish_reason is None
        self.pieces.append(piece)
        return None if is_silent else piece

    def choice(self) -> CompletionChoice:
        """Return the whole answer.

        Raises:
            RequestFailedError: It has not ended.
        """
        if not self.pieces or self.pieces[-1].finish_reason is None:
            raise RequestFailedError("the answer has no end")
        logprobs = [piece.logprobs for piece in self.pieces if piece.logprobs is not None]
        return CompletionChoice(
            index=self.index,
            text="".join(piece.text for piece in self.pieces),
            logprobs=joined(logprobs) if logprobs else None,
            finish_reason=self.pieces[-1].finish_reason,
            stop_reason=self.pieces[-1].stop_reason,
        )

    def _echo(self) -> str:
        """Return the prompt's text before the first piece, if it was asked for."""
        if self.pieces or not self.run.with_echo:
            return ""
        parts = self.run.generation.prompts[self.prompt]
        if "prompt" in parts:
            return str(parts["prompt"])
        return self.run.generation.frontend.tokenizer.decode(parts["prompt_token_ids"])


async def _whole(run: Run) -> Completion:
    answers = run.answers()
    async with aclosing(run.generation.deltas()) as deltas:
        async for index, delta in deltas:
            answers[index].read(delta)
    return _completion(run, [answer.choice() for answer in answers], run.generation.usage())


async def _events(run: Run) -> AsyncGenerator[bytes]:
    answers = run.answers()
    usage = None if run.with_usage else msgspec.UNSET
    async with aclosing(run.generation.deltas()) as deltas:
        async for index, delta in deltas:
            piece = answers[index].read(delta)
            if piece is not None:
                yield msgspec.json.encode(_completion(run, [piece], usage))
    if run.with_usage:
        yield msgspec.json.encode(_completion(run, [], run.generation.usage()))


def _completion(
    run: Run, choices: list[CompletionChoice], usage: Usage | msgspec.UnsetType | None
) -> Completion:
    envelope = run.envelope
    return Completion(
        id=envelope.id,
        created=envelope.created,
        model=envelope.model,
        choices=choices,
        usage=usage,
    )


def _public(delta: Delta) -> FinishReason | None:
    return delta.finish_reason if delta.finish_reason in ("stop", "length") else None


def _check_count(prompt: str | list[Any], n: int) -> None:
    """Check the number of answers before anything is copied."""
    is_many = isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is not int
    num_prompts = len(prompt) if is_many else 1
    if num_prompts > MAX_PROMPTS or num_prompts * n > MAX_CHOICES:
        raise InvalidRequestError(
            f"a request takes at most {MAX_PROMPTS} prompts and {MAX_CHOICES} answers, got "
            f"{num_prompts} prompts of {n} answers",
            param="prompt",
        )
