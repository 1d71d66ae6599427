"""`quire bench throughput | startup`: measure this machine, and say what was measured."""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import fields
from typing import Any

from quire.cli.options import add_options, read_settings
from quire.config import DEFAULT_MODEL, Settings
from quire.errors import EngineDeadError
from quire.llm import LLM
from quire.sampling_params import SamplingParams

GROUPS = ("model", "cache", "scheduler", "parallel", "lora", "parts", "plugins")
FIRST_TOKEN = (
    "import json, sys; from quire import LLM, SamplingParams; "
    "LLM(**json.loads(sys.argv[1])).generate([[5]], SamplingParams(max_tokens=1, temperature=0))"
)
STARTUP_TIMEOUT_S = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    measures = parser.add_subparsers(dest="measure", required=True, metavar="MEASURE")
    throughput = measures.add_parser("throughput", help="tokens per second, all prompts at once")
    throughput.add_argument("--num-prompts", type=_at_least_one, default=16, metavar="N")
    throughput.add_argument(
        "--input-len", type=_at_least_one, default=128, metavar="N", help="tokens"
    )
    throughput.add_argument(
        "--output-len", type=_at_least_one, default=64, metavar="N", help="tokens"
    )
    throughput.add_argument(
        "--repeats", type=_at_least_one, default=5, metavar="N", help="timed runs"
    )
    startup = measures.add_parser("startup", help="fresh process to first token, in seconds")
    startup.add_argument(
        "--repeats", type=_at_least_one, default=5, metavar="N", help="fresh processes"
    )
    for measure in (throughput, startup):
        measure.add_argument("model", nargs="?", default=None, help=f"default: {DEFAULT_MODEL}")
        measure.add_argument("--json", action="store_true", help="print JSON")
        add_options(measure, GROUPS, skip="model")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    settings = read_settings(arguments)
    if arguments.measure == "throughput":
        figures = throughput(
            settings,
            arguments.num_prompts,
            arguments.input_len,
            arguments.output_len,
            arguments.repeats,
        )
    else:
        figures = startup(settings, arguments.repeats)
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<28} {value:,.3f}" if isinstance(value, float) else f"{name:<28} {value}")
    return 0


def throughput(
    settings: Settings, num_prompts: int, input_len: int, output_len: int, repeats: int
) -> dict[str, Any]:
    """Generate greedily for random prompts, all at once; one warm-up run is not counted."""
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    with LLM.from_settings(settings) as llm:
        vocab_size = llm.composition.description.vocab_size
        draw = random.Random(0)
        prompts = [
            [draw.randrange(vocab_size) for _ in range(input_len)] for _ in range(num_prompts)
        ]
        seconds = [_timed(llm, prompts, params) for _ in range(repeats + 1)][1:]
        dtype = llm.composition.dtype
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


def startup(settings: Settings, repeats: int) -> dict[str, Any]:
    """Start fresh processes that build the engine and generate one token.

    Raises:
        EngineDeadError: A process failed; the message ends with what it printed.
    """
    options = {
        option.name: value
        for group in GROUPS
        for option in fields(getattr(settings, group))
        if (value := getattr(getattr(settings, group), option.name)) != option.default
    }
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", FIRST_TOKEN, json.dumps(options)],
            capture_output=True,
            text=True,
            timeout=STARTUP_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise EngineDeadError(f"a fresh process failed: {done.stderr.strip()[-500:]}")
        seconds.append(time.perf_counter() - started)
    return {
        "model": settings.model.model,
        "repeats": repeats,
        "seconds_to_first_token_median": statistics.median(seconds),
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
    }


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _timed(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> float:
    started = time.perf_counter()
    llm.generate(prompts, params)
    return time.perf_counter() - started
