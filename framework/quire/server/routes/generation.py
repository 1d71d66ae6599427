"""Generation for one HTTP request: its completions, counted and limited."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from quire.errors import GrammarError, RequestFailedError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.completions.delta_stream import DeltaStream
from quire.frontend.intake.prompt import EncodedPrompt
from quire.frontend.intake.time_limit import TimeLimit
from quire.messages import AdapterRef, CompletedRequest
from quire.outputs import CompletionOutput, Delta, PromptLogprobs
from quire.sampling_params import BeamSearchParams, SamplingParams
from quire.server.http.logprob_budget import MAX_UNCOUNTED, LogprobBudget, LogprobReservation
from quire.server.http.merged_streams import merged
from quire.server.keys.account import TokenReservation
from quire.server.keys.cache_salts import combined_salt
from quire.server.routes.stream_interval import StreamInterval
from quire.server.wire.finish_reason import finish_reason_of
from quire.server.wire.params import response_id
from quire.server.wire.protocol import CachedTokens, SamplingBody, Usage
from quire.server.wire.sender import Sender

LARGE = 1024  # tokens or candidates; more of them are processed in a thread

Part = TypeVar("Part", Delta, CompletionOutput)
IsComplete = Callable[[Delta], bool]


class Generation:
    """The completions of one HTTP request, numbered prompt by prompt; it runs once.

    Args:
        frontend: Frontend that serves the prompts.
        budget: Budget of log probabilities; reservations are held until `release`.
        prompts: Prompts as `AsyncFrontend.submit` accepts them.
        params: Parameters of sampling or of a beam search, with `n` completions per prompt.
        adapter: LoRA adapter.
        body: Body of the request, which has its priority and its timeout.
        sender: Client that sent the request, and when.
        is_prompt_only: True if the request is about the prompts, so completions are left out.
        until: Function for each choice of one prompt, which reads its deltas and returns whether
            no more of it is wanted; then the choice ends as if the model had ended it. Empty:
            choices end by themselves.

    Attributes:
        encoded: Encoded prompts; empty before the first delta.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        budget: LogprobBudget,
        prompts: Sequence[dict[str, Any]],
        params: SamplingParams | BeamSearchParams,
        adapter: AdapterRef | None,
        body: SamplingBody,
        sender: Sender,
        *,
        is_prompt_only: bool = False,
        until: Sequence[IsComplete] = (),
    ) -> None:
        self._until = until
        self._tokens: TokenReservation | None = None
        self.frontend = frontend
        self._budget = budget
        self._reservations: list[LogprobReservation] = []
        self.prompts = prompts
        self._given_params = params
        if isinstance(params, BeamSearchParams):
            params = params.sampling_params()
        params = frontend.intake.resolve_logprobs(params)
        self.n = params.n
        self._num_generated = params.num_generated
        self._num_running = len(prompts) * self._num_generated
        self._params = params
        self._adapter = adapter
        self._body = body
        self._sender = sender
        self._is_prompt_only = is_prompt_only
        self._interval = StreamInterval.of(body)
        self.encoded: list[EncodedPrompt] = []
        self._streams: list[DeltaStream] = []
        self._num_prompt_tokens = 0
        self._num_completion_tokens = 0
        self._num_cached_tokens = [0] * len(prompts)
        self._is_aborted = False
        self._is_settled = False

    @property
    def num_choices(self) -> int:
        """Number of choices in the response."""
        return len(self.prompts) * self.n

    def envelope(self, prefix: str) -> dict[str, Any]:
        """Return the fields that are the same in all parts of the response.

        Raises:
            InvalidRequestError: The client's `request_id` cannot be a part of the id.
        """
        return {
            "id": response_id(f"{prefix}-", self._body.request_id),
            "created": int(time.time()),
            "model": self.model,
        }

    @property
    def model(self) -> str:
        """Name of the model or the adapter."""
        return self.frontend.model_name if self._adapter is None else self._adapter.name

    @property
    def params(self) -> SamplingParams:
        """Sampling parameters."""
        return self._params

    @property
    def time_limit(self) -> TimeLimit:
        """Time by which the request must have finished."""
        return self.frontend.time_limit(self._sender.arrival_s, self._body.timeout_s)

    @property
    def records(self) -> list[CompletedRequest]:
        """Records of the requests to the engine that have ended."""
        return [record for stream in self._streams for record in stream.completions.records]

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta]]:
        """Generate; yield (choice index, delta). Closing the generator aborts what still runs.

        The caller calls `release` once it holds no data of the deltas any more.

        Raises:
            HTTPError: The server shut down before the end.
            RequestError: A prompt is invalid, or failed.
            EngineDeadError: The engine stopped.
        """
        try:
            await self._begin()
            if len(self._streams) == 1:  # without a generator in between
                async for delta in self._streams[0]:
                    if (shown := self._shown(0, delta)) is not None:
                        yield shown
            else:
                async with aclosing(merged(self._streams)) as deltas:
                    async for prompt_index, delta in deltas:
                        if (shown := self._shown(prompt_index, delta)) is not None:
                            yield shown
        finally:
            await self._end()
        self._check_end()

    async def outputs(self) -> list[CompletionOutput]:
        """Generate; return the completion of each choice, and raise what `deltas` raises."""
        try:
            await self._begin(is_whole=not self._until)
            if len(self._streams) == 1:
                async for delta in self._streams[0]:
                    self._shown(0, delta)
            else:
                async with aclosing(merged(self._streams)) as deltas:
                    async for prompt_index, delta in deltas:
                        self._shown(prompt_index, delta)
        finally:
            await self._end()
        self._check_end()
        found = [output for stream in self._streams for output in stream.completions.outputs()]
        return [_without_completion(output) for output in found] if self._is_prompt_only else found

    def prompt_logprobs(self, choice: int) -> PromptLogprobs | None:
        """Return all log probabilities of a choice's prompt; only the first of `n` has them."""
        prompt, child = divmod(choice, self.n)
        return self._streams[prompt].completions.prompt_logprobs if child == 0 else None

    async def abort(self) -> None:
        """Abort what still runs, whichever task reads it; the reader gets an error.

        May be called at any time, also twice.
        """
        self._is_aborted = True
        await self._end()

    async def _begin(self, *, is_whole: bool = False) -> None:
        """Submit the prompts."""
        async with self.time_limit.hold():
            self.encoded = await self._encode()
        self._check_not_aborted()
        self._tokens = self._reserve_tokens()
        self._reserve_logprobs()
        for encoded in self.encoded:
            stream = await self._submit(encoded, is_whole=is_whole)
            self._streams.append(stream)
            self._check_not_aborted()
            self._num_prompt_tokens += len(stream.prompt_token_ids)
            self._tokens.use(len(stream.prompt_token_ids))
            if len(self.encoded) > 1:
                await asyncio.sleep(0)  # let other tasks run between hundreds of prompts

    def _shown(self, prompt_index: int, delta: Delta) -> tuple[int, Delta] | None:
        """Count a delta; return its choice, and what to show of it now."""
        if self._until and delta.finish_reason is None and self._until[delta.index](delta):
            delta = msgspec.structs.replace(delta, finish_reason="stop")
            self.frontend.dispatch.stop(self._streams[prompt_index], delta.index)
        if delta.finish_reason is not None and finish_reason_of(delta) is not None:
            self._num_running -= 1
        shown = _without_completion(delta) if self._is_prompt_only else delta
        self._count(prompt_index, shown)
        choice = prompt_index * self.n + delta.index
        if self._interval is None:
            return choice, shown
        joined = self._interval.joined(choice, shown)
        return None if joined is None else (choice, joined)

    async def _end(self) -> None:
        """Abort what still runs, and count what was used."""
        for stream in self._streams:
            await stream.aclose()
        self._settle()

    def _check_not_aborted(self) -> None:
        if self._is_aborted:
            raise RequestFailedError("the request is over, and its completions were aborted")

    def _check_end(self) -> None:
        if self._num_running:
            self._check_not_aborted()
            raise RequestFailedError("the engine ended the request before it was finished")

    async def _submit(self, prompt: EncodedPrompt, *, is_whole: bool) -> DeltaStream:
        try:
            return await self.frontend.submit(
                prompt,
                self._given_params,
                adapter=self._adapter,
                priority=self._sender.account.priority_of(self._body.priority),
                timeout_s=self._body.timeout_s,
                arrival_s=self._sender.arrival_s,
                client=self._sender.client,
                http_request_id=self._sender.request_id,
                is_whole=is_whole,
            )
        except GrammarError as error:
            if error.param == "structured_outputs" and self._body.response_format is not None:
                error.param = "response_format"
            raise

    def usage(self) -> Usage:
        """Return the token counts so far."""
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_completion_tokens,
            total_tokens=self._num_prompt_tokens + self._num_completion_tokens,
            prompt_tokens_details=CachedTokens(sum(self._num_cached_tokens)),
        )

    @property
    def is_large(self) -> bool:
        """Whether making the full response takes long."""
        num_reserved = sum(reservation.num for reservation in self._reservations)
        num_logprobs = self._num_completion_tokens * ((self.num_top_logprobs or 0) + 1)
        return max(num_reserved, num_logprobs) > LARGE

    @property
    def num_top_logprobs(self) -> int | None:
        """Number of candidates per position to show; None if there are no log probabilities."""
        if self._params.logprob_token_ids:
            return len(self._params.logprob_token_ids) + 1  # and the chosen one
        return self._params.logprobs

    def is_large_delta(self, delta: Delta) -> bool:
        """Whether processing a delta takes long."""
        if delta.logprobs is None and delta.prompt_logprobs is None:
            return False
        num_of_prompt = len(delta.prompt_logprobs or ()) * ((self._params.prompt_logprobs or 0) + 1)
        num_sampled = len(delta.logprobs or ()) * ((self.num_top_logprobs or 0) + 1)
        return max(num_of_prompt, num_sampled) > LARGE

    def release(self) -> None:
        """Release the reservations of log probabilities. May be called twice."""
        for reservation in self._reservations:
            reservation.release()

    async def _encode(self) -> list[EncodedPrompt]:
        """Tokenize the prompts, whose part of the prefix cache is that of the account."""
        of_key = self._sender.account.cache_salt
        encoded = await self.frontend.encode(self.prompts)
        if of_key is None:
            return encoded
        return [
            msgspec.structs.replace(e, cache_salt=combined_salt(of_key, e.cache_salt))
            for e in encoded
        ]

    def _reserve_tokens(self) -> TokenReservation:
        most = (self._params.max_tokens or 0) * self._num_generated * len(self.prompts)
        num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self.encoded)
        return self._sender.account.reserve(num_prompt_tokens, most)

    def _settle(self) -> None:
        """Count the request's tokens in the usage of its key, and give back what it left."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._tokens is not None:
            self._count_tokens(self._num_unread)
            self._tokens.close()
        self._sender.account.count_tokens(
            self._num_prompt_tokens, sum(self._num_cached_tokens), self._num_completion_tokens
        )

    def _reserve_logprobs(self) -> None:
        params, lengths = self._params, [len(prompt.token_ids) for prompt in self.encoded]
        if params.prompt_logprobs is not None:
            num_candidates = params.prompt_logprobs + 1
            self._reservations.append(self._budget.reserve(sum(lengths), num_candidates))
        if params.logprobs is not None and params.logprobs > MAX_UNCOUNTED:
            room = [self.frontend.max_model_len - length for length in lengths]
            limits = [min(most, params.max_tokens or most) for most in room]
            num_candidates = params.logprobs + 1
            self._reservations.append(
                self._budget.reserve(self._num_generated * sum(limits), num_candidates, "logprobs")
            )

    @property
    def _num_unread(self) -> int:
        """Number of generated tokens that no reader has taken."""
        if self._is_prompt_only:
            return 0
        num_generated = sum(stream.completions.num_tokens for stream in self._streams)
        return max(0, num_generated - self._num_completion_tokens)

    def _count_tokens(self, num_tokens: int) -> None:
        self._num_completion_tokens += num_tokens
        if self._tokens is not None:
            self._tokens.use(num_tokens)

    def _count(self, prompt_index: int, delta: Delta) -> None:
        self._count_tokens(len(delta.token_ids))
        if delta.index == 0:  # the others hit the prefix cache of the first
            self._num_cached_tokens[prompt_index] = delta.num_cached_tokens


def _without_completion(part: Part) -> Part:
    """Leave out the one token that is generated even for a prompt alone."""
    return msgspec.structs.replace(
        part,
        text="",
        token_ids=[],
        logprobs=None if part.logprobs is None else [],
        finish_reason=None if part.finish_reason is None else "length",
        stop_reason=None,
    )
