"""`quire bench startup`: fresh process to first token, in seconds."""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import fields
from typing import Any

from quire.cli.bench.bench_arguments import at_least_one
from quire.cli.bench.tables import plain_lines
from quire.cli.command_parser import CommandParser
from quire.cli.options import ENGINE_GROUPS, add_model_options
from quire.cli.setting_values import read_settings
from quire.config import Settings
from quire.errors import EngineDeadError

FIRST_TOKEN = (
    "import json, sys; from quire import LLM, SamplingParams; "
    "LLM(**json.loads(sys.argv[1])).generate([[5]], SamplingParams(max_tokens=1, temperature=0))"
)
STARTUP_TIMEOUT_S = 600

lines = plain_lines


def add_arguments(parser: CommandParser) -> None:
    """Declare the measure's arguments."""
    parser.add_argument(
        "--repeats", type=at_least_one, default=5, metavar="N", help="fresh processes"
    )
    add_model_options(parser)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure with the engine that the options describe."""
    return startup(read_settings(arguments), arguments.repeats)


def startup(settings: Settings, repeats: int) -> dict[str, Any]:
    """Start fresh processes that build the engine and generate one token.

    Raises:
        EngineDeadError: A process failed; the message ends with what it printed.
    """
    options = _given_options(settings)
    seconds = [_first_token_s(options) for _ in range(repeats)]
    return {
        "model": settings.model.model,
        "repeats": repeats,
        "seconds_to_first_token_median": statistics.median(seconds),
        "seconds_min": min(seconds),
        "seconds_max": max(seconds),
    }


def _given_options(settings: Settings) -> dict[str, Any]:
    """Return the options that are not at their defaults."""
    return {
        option.name: value
        for group in ENGINE_GROUPS
        for option in fields(getattr(settings, group))
        if (value := getattr(getattr(settings, group), option.name)) != option.default
    }


def _first_token_s(options: dict[str, Any]) -> float:
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
    return time.perf_counter() - started
