"""Engines that take requests at any time, behind the same few methods, for `served_requests.py`.

Each is imported only if it is asked for, so this runs in any environment that has one of them.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import AsyncGenerator
from typing import Any, Protocol

MAX_NUM_SEQS = 64
CACHE_GIB = 3  # for 64 requests of at most 272 tokens, and their blocks that are not full


class ServingEngine(Protocol):
    """An engine with 64 running requests at most, and without prefix caching."""

    def generate(self, token_ids: list[int], num_out: int) -> AsyncGenerator[int]:
        """Yield the number of tokens of each message; the request ends with the generator."""

    async def shutdown(self) -> None:
        """Stop the engine."""


class Quire:
    """quire, without flags.

    Args:
        folder: The checkpoint.
    """

    def __init__(self, folder: str) -> None:
        from quire.async_engine import AsyncEngine
        from quire.sampling_params import SamplingParams

        self._params = SamplingParams
        self._engine = AsyncEngine(folder, enable_prefix_caching=False, max_num_seqs=MAX_NUM_SEQS)

    async def generate(self, token_ids: list[int], num_out: int) -> AsyncGenerator[int]:
        """Yield the number of tokens of each message."""
        params = self._params(temperature=0, max_tokens=num_out, ignore_eos=True)
        async for delta in self._engine.generate({"prompt_token_ids": token_ids}, params):
            yield len(delta.token_ids)

    async def shutdown(self) -> None:
        """Stop the engine."""
        await self._engine.shutdown()


class OpenVino:
    """OpenVINO GenAI's pipeline with continuous batching, whose steps a thread runs.

    Args:
        folder: The checkpoint, in whose folder the exported one is.
    """

    def __init__(self, folder: str) -> None:
        import numpy as np
        import openvino
        import openvino_genai

        self._np, self._openvino, self._genai = np, openvino, openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_seqs, scheduler.cache_size = MAX_NUM_SEQS, CACHE_GIB
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            f"{folder}/openvino-fp16", scheduler, "CPU", {}
        )
        self._new: queue.SimpleQueue[tuple[list[int], int, asyncio.Queue[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def generate(self, token_ids: list[int], num_out: int) -> AsyncGenerator[int]:
        """Yield the number of tokens of each message."""
        messages: asyncio.Queue[Any] = asyncio.Queue()
        self._new.put((token_ids, num_out, messages))
        handle, count = await messages.get(), 0
        try:
            while count < num_out:
                message = await messages.get()
                if isinstance(message, Exception):
                    raise message
                count += message
                yield message
        finally:
            handle.cancel()

    async def shutdown(self) -> None:
        """Stop the engine."""
        self._new.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        """Run steps while there are requests, and wait for one otherwise."""
        running: dict[Any, asyncio.Queue[Any]] = {}
        while True:
            while not running or not self._new.empty():
                request = self._new.get()
                if request is None:
                    while self._pipeline.has_non_finished_requests():  # cancelled ones
                        self._pipeline.step()
                    return
                token_ids, num_out, messages = request
                handle = self._add(token_ids, num_out)
                self._send(messages, handle)
                running[handle] = messages
            try:
                self._pipeline.step()
            except RuntimeError as error:
                for messages in running.values():
                    self._send(messages, error)
                return
            running = {
                handle: messages
                for handle, messages in running.items()
                if self._read(handle, messages)
            }

    def _add(self, token_ids: list[int], num_out: int) -> Any:
        inputs = self._openvino.Tensor(self._np.array([token_ids], dtype=self._np.int64))
        wanted = self._genai.GenerationConfig(
            max_new_tokens=num_out, do_sample=False, ignore_eos=True
        )
        return self._pipeline.add_request(next(self._numbers), inputs, wanted)

    def _read(self, handle: Any, messages: asyncio.Queue[Any]) -> bool:
        """Send what a request has generated; returns whether it goes on."""
        while handle.can_read():
            (output,) = handle.read().values()
            if output.generated_ids:
                self._send(messages, len(output.generated_ids))
        return handle.get_status() == self._genai.GenerationStatus.RUNNING

    def _send(self, messages: asyncio.Queue[Any], message: Any) -> None:
        self._loop.call_soon_threadsafe(messages.put_nowait, message)


ENGINES: dict[str, type[Quire] | type[OpenVino]] = {"quire": Quire, "openvino": OpenVino}
