"""`quire bench throughput`: tokens per second, all prompts at once."""

import argparse
import random
import statistics
import time
from typing import Any

from quire.cli.bench.bench_arguments import at_least_one
from quire.cli.bench.tables import plain_lines
from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options
from quire.cli.setting_values import read_settings
from quire.config import Settings
from quire.llm import LLM
from quire.sampling_params import SamplingParams

lines = plain_lines


def add_arguments(parser: CommandParser) -> None:
    """Declare the measure's arguments."""
    parser.add_argument("--num-prompts", type=at_least_one, default=16, metavar="N")
    parser.add_argument("--input-len", type=at_least_one, default=128, metavar="N", help="tokens")
    parser.add_argument("--output-len", type=at_least_one, default=64, metavar="N", help="tokens")
    parser.add_argument("--repeats", type=at_least_one, default=5, metavar="N", help="timed runs")
    add_model_options(parser)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure with the engine that the options describe."""
    return throughput(
        read_settings(arguments),
        arguments.num_prompts,
        arguments.input_len,
        arguments.output_len,
        arguments.repeats,
    )


def throughput(
    settings: Settings, num_prompts: int, input_len: int, output_len: int, repeats: int
) -> dict[str, Any]:
    """Generate greedily for random prompts, all at once; one warm-up run is not counted."""
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    with LLM.from_settings(settings) as llm:
        rng = random.Random(0)
        vocab_size = llm.composition.description.vocab_size
        runs = [
            [[rng.randrange(vocab_size) for _ in range(input_len)] for _ in range(num_prompts)]
            for _ in range(repeats + 1)  # new prompts each time: no prefix hits
        ]
        seconds = [_timed(llm, prompts, params) for prompts in runs][1:]
        dtype = llm.composition.dtype.value
    median = statistics.median(seconds)
    return {
        "model": settings.model.model,
        "dtype": dtype,
        "num_prompts": num_prompts,
        "input_len": input_len,
        "output_len": output_len,
        "repeats": repeats,
        "seconds_median": median,
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
        "requests_per_s": num_prompts / median,
        "output_tokens_per_s": num_prompts * output_len / median,
        "total_tokens_per_s": num_prompts * (input_len + output_len) / median,
    }


def _timed(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    started = time.perf_counter()
    llm.generate(prompts, params)
    return time.perf_counter() - started
