"""Inter-token latency of plain streams, alone and while hostile grammars compile."""

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

from quire.async_engine import AsyncEngine
from quire.cli.bench.bench_grammars import hostile
from quire.config import Settings
from quire.errors import RequestError
from quire.sampling_params import SamplingParams

NUM_HOSTILE = 4  # grammars that compile or wait at any time


class StreamLoad(NamedTuple):
    """Plain streams of a measurement; lengths in tokens."""

    num_prompts: int
    input_len: int
    output_len: int
    repeats: int


class Gaps(NamedTuple):
    """Times between the tokens of plain streams, in milliseconds.

    Attributes:
        quiet: Without grammars.
        hostile: While hostile grammars compile.
    """

    quiet: list[float]
    hostile: list[float]


def measure_gaps(settings: Settings, load: StreamLoad) -> Gaps:
    """Run plain streams in turn without and with hostile grammars; the first two do not count."""
    return asyncio.run(_measure(settings, load))


async def _measure(settings: Settings, load: StreamLoad) -> Gaps:
    engine = AsyncEngine.from_settings(settings)
    gaps = Gaps([], [])
    numbers, rng = itertools.count(), random.Random(0)
    try:
        for repeat in range(load.repeats + 1):
            quiet = await _streams(engine, load, rng)
            others = [asyncio.create_task(_be_hostile(engine, numbers)) for _ in range(NUM_HOSTILE)]
            try:
                disturbed = await _streams(engine, load, rng)
            finally:
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)
            if repeat:
                gaps.quiet.extend(quiet)
                gaps.hostile.extend(disturbed)
    finally:
        await engine.shutdown()
    return gaps


async def _streams(engine: AsyncEngine, load: StreamLoad, rng: random.Random) -> list[float]:
    vocab_size = engine.composition.description.vocab_size
    prompts = [
        [rng.randrange(vocab_size) for _ in range(load.input_len)] for _ in range(load.num_prompts)
    ]
    gaps = await asyncio.gather(*(_gaps(engine, each, load.output_len) for each in prompts))
    return [gap for stream in gaps for gap in stream]


async def _gaps(engine: AsyncEngine, prompt: list[int], output_len: int) -> list[float]:
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    times = [time.perf_counter() async for _ in engine.generate(prompt, params)]
    return [1000 * (after - before) for before, after in itertools.pairwise(times)]


async def _be_hostile(engine: AsyncEngine, numbers: Iterator[int]) -> None:
    """Send one hostile grammar after another."""
    for number in numbers:
        params = SamplingParams(max_tokens=1, structured_outputs=hostile(number))
        with contextlib.suppress(RequestError):  # refused, or not compiled within its limits
            async for _ in engine.generate([1], params, timeout_s=5.0):
                pass
        await asyncio.sleep(0)
