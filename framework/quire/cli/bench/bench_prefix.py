"""`quire bench prefix`: what the prefix cache costs and gains, by hit rate.

Two engines of the same model, one with and one without the cache, run the same new prompts in turn.
A fraction of each prompt, the hit rate, is common to all prompts and was computed just before; the
rest is unique. A pair is one run of both engines, in alternating order; the figure is the median of
the pairs' ratios with its bootstrap interval.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from quire.cli.bench.bench_arguments import at_least_one
from quire.cli.bench.interval import Figure, bootstrap
from quire.cli.bench.model_shapes import SHAPES, write_shape
from quire.cli.bench.tables import machine_info, table_lines
from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options
from quire.cli.setting_values import read_settings
from quire.config import Settings
from quire.llm import LLM
from quire.sampling_params import SamplingParams

HIT_RATES = (0.0, 0.25, 0.5, 0.75, 0.9)
DEFAULT_SHAPE = "qwen3-0.6b"
MS = 1e3

TokenIds = list[int]


class Load(NamedTuple):
    """Size of each run; lengths in tokens."""

    num_prompts: int
    prompt_len: int
    output_len: int
    pairs: int


class PrefixRun(NamedTuple):
    """Measurements of one engine with one set of prompts."""

    seconds: float  # all prompts, to the end
    first_token_s: float  # one prompt alone
    hit_rate: float  # as the engine reports it


def add_arguments(parser: CommandParser) -> None:
    """Declare the measure's arguments."""
    parser.add_argument(
        "--hit-rates",
        type=_fraction,
        nargs="+",
        default=HIT_RATES,
        metavar="X",
        help="0 to below 1",
    )
    parser.add_argument("--num-prompts", type=at_least_one, default=4, metavar="N")
    parser.add_argument("--prompt-len", type=at_least_one, default=512, metavar="N", help="tokens")
    parser.add_argument("--output-len", type=at_least_one, default=8, metavar="N", help="tokens")
    parser.add_argument("--pairs", type=at_least_one, default=7, metavar="N", help="timed pairs")
    parser.add_argument(
        "--shape",
        choices=SHAPES,
        default=DEFAULT_SHAPE,
        help=f"if no model is named: random weights of these sizes (default: {DEFAULT_SHAPE})",
    )
    add_model_options(parser, default="random weights, see --shape")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure with the named model, or with one of random weights."""
    load = Load(arguments.num_prompts, arguments.prompt_len, arguments.output_len, arguments.pairs)
    if arguments.model is not None:
        figures = sweep(read_settings(arguments), load, arguments.hit_rates)
        return {"model": arguments.model, **figures}
    with tempfile.TemporaryDirectory() as folder:
        write_shape(Path(folder), arguments.shape)
        settings = read_settings(arguments, model=folder, load_format="dummy")
        figures = sweep(settings, load, arguments.hit_rates)
    return {"model": f"random weights, {arguments.shape}", **figures}


def sweep(settings: Settings, load: Load, hit_rates: Sequence[float]) -> dict[str, Any]:
    """Measure each hit rate with the same two engines."""
    with ExitStack() as engines:
        cached, plain = (
            engines.enter_context(LLM.from_settings(_with_cache(settings, load, is_on)))
            for is_on in (True, False)
        )
        bench = PrefixBench(cached, plain, load)
        bench.warm_up()
        return {
            **load._asdict(),
            "dtype": cached.composition.dtype.value,
            "block_size": cached.composition.block_size,
            "hit_rates": [bench.measure(rate) for rate in hit_rates],
            "machine": machine_info(),
        }


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the table."""
    return [
        f"{figures['model']}, {figures['dtype']}; {figures['num_prompts']} x "
        f"({figures['prompt_len']} in, {figures['output_len']} out), {figures['pairs']} pairs; "
        "ratios to the cache being off (median, 95 % interval)",
        *table_lines(HEADERS, [_row(rate) for rate in figures["hit_rates"]]),
    ]


class PrefixBench:
    """Two engines that run the same prompts in turn.

    Args:
        cached: Engine with the prefix cache.
        plain: Engine without it.
        load: Size of each run.
    """

    def __init__(self, cached: LLM, plain: LLM, load: Load) -> None:
        self._engines = (cached, plain)
        self._load = load
        self._rng = random.Random(0)
        self._block_size = cached.composition.block_size
        self._vocab_size = cached.composition.description.vocab_size

    def warm_up(self) -> None:
        """Run a pair that is not counted, and that writes all memory of the KV cache once.

        The engine without the cache reuses the same few blocks; the one with it goes through the
        whole pool, and its times would include the system's allocation of fresh memory.
        """
        self._pair(0.0, 0)

    def measure(self, hit_rate: float) -> dict[str, Any]:
        """Return the figures of one hit rate."""
        pairs = [self._pair(hit_rate, index) for index in range(self._load.pairs)]
        throughput = [plain.seconds / cached.seconds for cached, plain in pairs]
        first_token = [plain.first_token_s / cached.first_token_s for cached, plain in pairs]
        seconds = [[run.first_token_s for run in runs] for runs in zip(*pairs, strict=True)]
        return {
            "hit_rate_asked": hit_rate,
            "hit_rate": pairs[0][0].hit_rate,
            "throughput_ratio": statistics.median(throughput),
            "throughput_ratio_95_interval": bootstrap(throughput, statistics.median),
            "first_token_ratio": statistics.median(first_token),
            "first_token_ratio_95_interval": bootstrap(first_token, statistics.median),
            "first_token_ms_cached": Figure.of(seconds[0], MS)._asdict(),
            "first_token_ms_plain": Figure.of(seconds[1], MS)._asdict(),
            "throughput_ratios": throughput,
            "first_token_ratios": first_token,
        }

    def _pair(self, hit_rate: float, index: int) -> tuple[PrefixRun, PrefixRun]:
        """Run both engines with the same new prompts; which one is first alternates."""
        num_common = round(hit_rate * self._load.prompt_len / self._block_size) * self._block_size
        common = self._tokens(num_common)
        num_new = self._load.prompt_len - num_common
        prompts = [common + self._tokens(num_new) for _ in range(self._load.num_prompts + 1)]
        order = (0, 1) if index % 2 else (1, 0)
        runs = {which: self._run(self._engines[which], common, prompts) for which in order}
        return runs[0], runs[1]

    def _run(self, llm: LLM, common: TokenIds, prompts: list[TokenIds]) -> PrefixRun:
        """Compute the common prefix, then time one prompt alone, and the others together."""
        if common:
            _generate(llm, [common + prompts[0][-1:]], 1)
        first_token_s, _ = _generate(llm, prompts[:1], 1)
        seconds, hit_rate = _generate(llm, prompts[1:], self._load.output_len)
        return PrefixRun(seconds, first_token_s, hit_rate)

    def _tokens(self, count: int) -> TokenIds:
        return [self._rng.randrange(self._vocab_size) for _ in range(count)]


def _generate(llm: LLM, prompts: list[TokenIds], num_tokens: int) -> tuple[float, float]:
    """Generate greedily; return the seconds, and the fraction of the prompts that was cached."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - started
    return seconds, sum(o.num_cached_tokens for o in outputs) / sum(map(len, prompts))


def _with_cache(settings: Settings, load: Load, is_on: bool) -> Settings:
    """Return the settings of one of the two engines, with no more memory than the load needs."""
    num_tokens = load.prompt_len + load.output_len
    return replace(
        settings,
        model=replace(settings.model, max_model_len=num_tokens),
        cache=replace(settings.cache, enable_prefix_caching=is_on),
        scheduler=replace(settings.scheduler, max_num_seqs=load.num_prompts + 1),
    )


# -- tables ----------------------------------------------------------------------------------------

HEADERS = ("asked", "hit rate", "throughput", "first token sooner", "ms with cache", "without")


def _row(rate: dict[str, Any]) -> list[str]:
    return [
        f"{rate['hit_rate_asked']:.0%}",
        f"{rate['hit_rate']:.1%}",
        _ratio(rate["throughput_ratio"], rate["throughput_ratio_95_interval"]),
        _ratio(rate["first_token_ratio"], rate["first_token_ratio_95_interval"]),
        f"{rate['first_token_ms_cached']['median']:,.0f}",
        f"{rate['first_token_ms_plain']['median']:,.0f}",
    ]


def _ratio(median: float, interval: Sequence[float]) -> str:
    return f"{median:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"


def _fraction(text: str) -> float:
    """Parse a fraction.

    Raises:
        argparse.ArgumentTypeError: The number is not from 0 to below 1.
        ValueError: The text is not a number.
    """
    fraction = float(text)
    if not 0 <= fraction < 1:
        raise argparse.ArgumentTypeError("must be from 0 to below 1")
    return fraction
