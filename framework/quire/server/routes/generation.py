"""Generation for one HTTP request: `n` completions of each prompt, merged into one stream."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from quire.errors import GrammarError, RequestFailedError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.completions.delta_stream import DeltaStream
from quire.frontend.intake.prompt import EncodedPrompt
from quire.messages import FinishReason
from quire.outputs import Delta
from quire.sampling_params import SamplingParams
from quire.server.http.logprob_budget import LogprobBudget, LogprobReservation
from quire.server.wire.http_errors import RETRY_AFTER_S, HTTPError
from quire.server.wire.protocol import CachedTokens, Usage

T = TypeVar("T")

LARGE = 1024  # candidates; more of them are processed in a thread


@dataclass(frozen=True, slots=True)
class Envelope:
    """Fields that are the same in all chunks of one response."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def fresh(cls, prefix: str, model: str) -> "Envelope":
        """Return an envelope with a new id."""
        return cls(f"{prefix}-{secrets.token_hex(14)}", model)


class Generation:
    """The completions of one HTTP request, numbered prompt by prompt; it runs once.

    Args:
        frontend: Frontend that serves the prompts.
        budget: Budget of prompt log probabilities; a reservation is held until `release`.
        prompts: Prompts as `AsyncFrontend.submit` accepts them.
        params: Sampling parameters, with `n` completions per prompt.
        adapter: Name of a LoRA adapter.
        constraint_field: Field that set the constraint, for the error if it is refused.
        priority: Scheduling priority; smaller goes first, if the policy reads it.
        timeout_s: Number of seconds that each prompt may take.
        is_prompt_only: True if the request is about the prompts, so completions are left out.

    Attributes:
        encoded: Encoded prompts; empty before the first delta.
    """

    def __init__(
        self,
        frontend: AsyncFrontend,
        budget: LogprobBudget,
        prompts: Sequence[dict[str, Any]],
        params: SamplingParams,
        adapter: str | None = None,
        constraint_field: str = "structured_outputs",
        *,
        priority: int | None = None,
        timeout_s: float | None = None,
        is_prompt_only: bool = False,
    ) -> None:
        self.frontend = frontend
        self._budget = budget
        self._reservation: LogprobReservation | None = None
        self.prompts = prompts
        self.n = params.n
        self._params = params
        self._adapter = adapter
        self._constraint_field = constraint_field
        self._priority = priority or 0
        self._timeout_s = timeout_s
        self._is_prompt_only = is_prompt_only
        self.encoded: list[EncodedPrompt] = []
        self._num_prompt_tokens = 0
        self._num_completion_tokens = 0
        self._num_cached_tokens = [0] * len(prompts)

    @property
    def num_choices(self) -> int:
        """Number of choices in the response."""
        return len(self.prompts) * self.n

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta]]:
        """Generate; yield (choice index, delta). Closing the generator aborts what still runs.

        The caller calls `release` once it holds no data of the deltas any more.

        Raises:
            HTTPError: The server shut down before the end.
            RequestError: A prompt is invalid, or failed.
            EngineDeadError: The engine stopped.
        """
        num_running = self.num_choices
        async with AsyncExitStack() as stack:
            streams = []
            self.encoded = await self.frontend.encode(self.prompts)
            self._reserve_logprobs()
            for encoded in self.encoded:
                stream = await self._submit(encoded)
                streams.append(await stack.enter_async_context(stream))
                self._num_prompt_tokens += len(stream.prompt_token_ids)
                await asyncio.sleep(0)  # let other tasks run between hundreds of prompts
            deltas = await stack.enter_async_context(aclosing(merged(streams)))
            async for prompt_index, delta in deltas:
                _check_finish(delta.finish_reason)
                num_running -= delta.finish_reason is not None
                if self._is_prompt_only:
                    delta = _without_completion(delta)
                self._count(prompt_index, delta)
                yield prompt_index * self.n + delta.index, delta
        if num_running:
            raise RequestFailedError("the engine ended the request before it was finished")

    async def _submit(self, prompt: EncodedPrompt) -> DeltaStream:
        try:
            return await self.frontend.submit(
                prompt,
                self._params,
                adapter=self._adapter,
                priority=self._priority,
                timeout_s=self._timeout_s,
            )
        except GrammarError as error:
            if error.param == "structured_outputs":
                error.param = self._constraint_field
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
        """Whether encoding the full response takes long."""
        return self._reservation is not None and self._reservation.num > LARGE

    def is_large_delta(self, delta: Delta) -> bool:
        """Whether processing a delta takes long."""
        num_rows = len(delta.prompt_logprobs or ())
        return num_rows * ((self._params.prompt_logprobs or 0) + 1) > LARGE

    def release(self) -> None:
        """Release the reservation of log probabilities. May be called twice."""
        if self._reservation is not None:
            self._reservation.release()

    def _reserve_logprobs(self) -> None:
        num_top = self._params.prompt_logprobs
        if num_top is not None:
            num_tokens = sum(len(prompt.token_ids) for prompt in self.encoded)
            self._reservation = self._budget.reserve(num_tokens, num_top + 1)

    def _count(self, prompt_index: int, delta: Delta) -> None:
        self._num_completion_tokens += len(delta.token_ids)
        if delta.index == 0:  # the others hit the prefix cache of the first
            self._num_cached_tokens[prompt_index] = delta.num_cached_tokens


async def merged(streams: Sequence[AsyncIterator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield (stream index, item) as items come; closing it, or an error in one, stops all."""
    if len(streams) == 1:
        async for only in streams[0]:
            yield 0, only
        return
    queue: asyncio.Queue[tuple[int, T] | _End] = asyncio.Queue(maxsize=2 * len(streams))
    tasks = [asyncio.create_task(_feed(queue, i, stream)) for i, stream in enumerate(streams)]
    try:
        num_running = len(tasks)
        while num_running:
            item = await queue.get()
            if not isinstance(item, _End):
                yield item
                continue
            num_running -= 1
            if item.error is not None:
                raise item.error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None = None


async def _feed(
    queue: "asyncio.Queue[tuple[int, T] | _End]", index: int, stream: AsyncIterator[T]
) -> None:
    end = _End()
    try:
        async for item in stream:
            await queue.put((index, item))
    except Exception as error:  # noqa: BLE001 - it is raised again by the reader of the queue
        end = _End(error)
    await queue.put(end)


def _without_completion(delta: Delta) -> Delta:
    """Return a delta without the one token that is generated even for a prompt alone."""
    return msgspec.structs.replace(
        delta,
        text="",
        token_ids=[],
        logprobs=None if delta.logprobs is None else [],
        finish_reason=None if delta.finish_reason is None else "length",
        stop_reason=None,
    )


def _check_finish(reason: FinishReason | None) -> None:
    """Raise an error for the finish reasons "abort" and "error", which OpenAI does not have."""
    if reason == "abort":
        raise HTTPError(
            503,
            "the request was aborted; the server may be shutting down",
            code="aborted",
            headers={"retry-after": str(RETRY_AFTER_S)},
        )
    if reason == "error":
        raise RequestFailedError("the request failed while it ran")
