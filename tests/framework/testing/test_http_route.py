"""The kit accepts a route that reads completions in tasks, and finds one that is not described."""

import asyncio
from typing import Any

import msgspec
import pytest

from quire import SamplingParams
from quire.errors import PluginLoadError
from quire.interfaces.http_route import HTTPRoute, HTTPRouteCapabilities
from quire.testing.http_route import HTTPRouteContract


class Body(msgspec.Struct):
    stream: bool = False


class Merging(HTTPRoute):
    """Merge two completions, each read by a task of its own."""

    body = Body

    async def respond(self, request: Any) -> Any:
        queue: asyncio.Queue[str | None] = asyncio.Queue()

        async def consume(prompt: str) -> None:
            async for piece in request.generate(prompt, SamplingParams(max_tokens=20)):
                await queue.put(piece.text)
            await queue.put(None)

        async def merged() -> Any:
            async with asyncio.TaskGroup() as tasks:
                for prompt in ("Once", "Twice"):
                    tasks.create_task(consume(prompt))
                num_running = 2
                while num_running:
                    if (text := await queue.get()) is None:
                        num_running -= 1
                    else:
                        yield {"text": text}

        return merged() if request.body.stream else [event async for event in merged()]


class Odd:
    """A type that is no JSON."""


class OddEvent(msgspec.Struct):
    odd: Odd


class Undescribed(Merging):
    """Have an event that cannot be described."""

    event = OddEvent


class TestMerging(HTTPRouteContract):
    route = Merging
    capabilities = HTTPRouteCapabilities("/acme/merging", generates=True)
    bodies = ({}, {"stream": True})


class OfUndescribed(HTTPRouteContract):
    route = Undescribed
    capabilities = HTTPRouteCapabilities("/acme/undescribed", generates=True)


def test_a_route_that_cannot_be_described_is_rejected():
    OfUndescribed.setup_class()
    try:
        with pytest.raises(PluginLoadError, match="cannot be described"):
            OfUndescribed().test_it_is_described()
    finally:
        OfUndescribed.teardown_class()
