"""`quire bench serve [URL]`: load on a server with OpenAI's routes, as its users see it."""

import argparse
import asyncio
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.cli.bench.serving.load_client import LoadTarget
from quire.cli.bench.serving.load_figures import parse_goals
from quire.cli.bench.serving.load_report import chart, report_lines
from quire.cli.bench.serving.load_run import LoadPlan, LoadResult
from quire.cli.bench.serving.load_series import LoadSeries, run_series
from quire.cli.bench.serving.prompts import FilePrompts, RandomPrompts, length_of, read_prompts
from quire.cli.bench.tables import machine_info
from quire.cli.command_parser import CommandParser, number
from quire.errors import BenchmarkError, SettingsError, UsageError
from quire.server.keys.key_file import read_key_file

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_INPUT_LEN, DEFAULT_OUTPUT_LEN = 128, 64
DISTRIBUTIONS = ("fixed", "uniform", "lognormal")
KEY_VARIABLES = ("QUIRE_API_KEY", "OPENAI_API_KEY")


def add_arguments(parser: CommandParser) -> None:
    """Declare the measure's arguments."""
    parser.add_word("url", f"address of the server; default: {DEFAULT_URL}")
    _add_target(parser)
    _add_load(parser)
    _add_prompts(parser)
    _add_output(parser)


def _add_target(parser: CommandParser) -> None:
    add = parser.add_argument_group("the server").add_argument
    add("--model", "-m", metavar="NAME", help="default: the first that the server lists")
    add("--endpoint", choices=("completions", "chat"), default="completions")
    add(
        "--api-key-file",
        metavar="FILE",
        help=f"key file; its first key is used; default: variable {' or '.join(KEY_VARIABLES)}",
    )
    add("--timeout-s", type=number(float, 0), default=600.0, metavar="X", help="of a request (600)")
    add("--ignore-eos", action="store_true", help="generate all tokens, past the end of the text")
    add("--temperature", type=number(float, 0), default=0.0, metavar="X", help="of sampling (0)")
    add("--extra-body", default="{}", metavar="JSON", help="more fields of each request")


def _add_load(parser: CommandParser) -> None:
    add = parser.add_argument_group("the load").add_argument
    add(
        "--num-prompts", type=number(int, 1), default=100, metavar="N", help="requests a load (100)"
    )
    add(
        "--request-rate",
        type=number(float, 0),
        nargs="+",
        metavar="X",
        help="requests per second, or inf: all at once (inf); several: a load for each",
    )
    add(
        "--capacity-shares",
        type=number(float, 0),
        nargs="+",
        default=[],
        metavar="X",
        help="after a load at rate inf one for each share of the requests/s that it completed",
    )
    add(
        "--burstiness",
        type=number(float, 0),
        default=1.0,
        metavar="X",
        help="1: Poisson (1), below: bursts, above: even",
    )
    add(
        "--max-concurrency",
        type=number(int, 1),
        nargs="+",
        default=[None],
        metavar="N",
        help="requests at once; with rate inf a closed loop; several: a load for each",
    )
    add("--warmup", type=number(int, 0), default=2, metavar="N", help="requests before it (2)")
    add("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (0)")


def _add_prompts(parser: CommandParser) -> None:
    add = parser.add_argument_group("the prompts").add_argument
    add("--prompts", metavar="FILE", help="JSON lines, or ShareGPT's list; default: random prompts")
    add("--input-len", type=number(int, 1), metavar="N", help=f"mean ({DEFAULT_INPUT_LEN} tokens)")
    add(
        "--output-len",
        type=number(int, 1),
        metavar="N",
        help=f"mean ({DEFAULT_OUTPUT_LEN} tokens; with --prompts, those of the file)",
    )
    add("--lengths", choices=DISTRIBUTIONS, default="fixed", help="distribution of both (fixed)")
    add("--spread", type=number(float, 0), default=0.5, metavar="X", help="of the lengths (0.5)")
    add("--prefix-len", type=number(int, 0), default=0, metavar="N", help="shared tokens (0)")
    add("--num-prefixes", type=number(int, 1), default=1, metavar="N", help="of shared ones (1)")
    add("--vocab-size", type=number(int, 11), default=1000, metavar="N", help="random ids (1000)")


def _add_output(parser: CommandParser) -> None:
    add = parser.add_argument_group("the figures").add_argument
    add(
        "--goodput",
        nargs="+",
        default=[],
        metavar="METRIC:MS",
        help="limits of a good request: ttft, tpot, e2el",
    )
    add("--json", metavar="FILE", help="also write all figures, as JSON")
    add("--plot", metavar="FILE", help="also draw them, as SVG")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Put the loads on the server; write the files that were asked for."""
    try:
        target = _target(arguments)
        prompts = _prompts(arguments, target)
        goals = parse_goals(arguments.goodput)
    except UsageError:
        raise
    except SettingsError as error:
        raise UsageError(str(error), hint="see `quire bench serve --help`") from None
    if arguments.request_rate and arguments.capacity_shares:
        raise UsageError(
            "--capacity-shares cannot be used with --request-rate",
            hint="see `quire bench serve --help`",
        )
    _check_positive("--request-rate", arguments.request_rate or ())
    _check_positive("--capacity-shares", arguments.capacity_shares)
    _check_positive("--burstiness", [arguments.burstiness])
    _check_file("--json", arguments.json)
    _check_file("--plot", arguments.plot)
    model, results = asyncio.run(run_series(_series(arguments, goals), target, prompts, _log))
    figures = {
        "url": target.url,
        "endpoint": target.endpoint,
        "model": model,
        "num_prompts": arguments.num_prompts,
        "seed": arguments.seed,
        "goodput_goals_ms": goals,
        "machine": machine_info(),
        "loads": [dict(result.figures) for result in results],
    }
    if arguments.json:
        _write(arguments.json, json.dumps(figures, indent=2) + "\n")
    if arguments.plot:
        _write(arguments.plot, chart(results))
    return figures


def lines(figures: Mapping[str, Any]) -> list[str]:
    """Return the tables."""
    return [*report_lines(figures)]


def _series(arguments: argparse.Namespace, goals: Mapping[str, float]) -> LoadSeries:
    return LoadSeries(
        num_prompts=arguments.num_prompts,
        loads=[
            LoadPlan(rate, arguments.burstiness, limit)
            for rate in arguments.request_rate or [math.inf]
            for limit in arguments.max_concurrency
        ],
        capacity_shares=arguments.capacity_shares,
        num_warmup=arguments.warmup,
        seed=arguments.seed,
        goals_ms=goals,
    )


def _target(arguments: argparse.Namespace) -> LoadTarget:
    try:
        extra = json.loads(arguments.extra_body)
    except ValueError as error:
        raise SettingsError(f"--extra-body is not JSON: {error}") from None
    if not isinstance(extra, dict):
        raise SettingsError("--extra-body must be a JSON object")
    fields = {"temperature": arguments.temperature} | extra
    if arguments.ignore_eos:
        fields["ignore_eos"] = True
    return LoadTarget(
        arguments.url or DEFAULT_URL,
        arguments.endpoint,
        arguments.model or "",
        _api_key(arguments.api_key_file),
        fields,
        arguments.timeout_s,
    )


def _api_key(path: str | None) -> str | None:
    if path is None:
        return next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
    try:
        return read_key_file(Path(path))[0].key
    except SettingsError as error:
        raise SettingsError(f"--api-key-file: {error}") from None


def _prompts(arguments: argparse.Namespace, target: LoadTarget) -> RandomPrompts | FilePrompts:
    if arguments.prompts:
        return read_prompts(Path(arguments.prompts), arguments.output_len, is_chat=target.is_chat)
    lengths = (arguments.input_len or DEFAULT_INPUT_LEN, arguments.output_len or DEFAULT_OUTPUT_LEN)
    input_len, output_len = (
        length_of(mean, arguments.lengths, arguments.spread) for mean in lengths
    )
    return RandomPrompts(
        input_len,
        output_len,
        arguments.prefix_len,
        arguments.num_prefixes,
        arguments.vocab_size,
        is_chat=target.is_chat,
    )


def _check_positive(flag: str, numbers: Sequence[float]) -> None:
    if not all(number > 0 for number in numbers):
        raise UsageError(f"{flag} must be more than 0", hint="see `quire bench serve --help`")


def _check_file(flag: str, path: str | None) -> None:
    """Return if a file can be written, before a load of hours is measured for it."""
    if path is None:
        return
    if Path(path).is_dir() or not os.access(Path(path).parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{flag} cannot write {path}",
            hint="name a file in a folder that exists and can be written",
        )


def _log(result: LoadResult) -> None:
    if sys.stderr.isatty():
        figures = result.figures
        done = f"{figures['completed']} done, {figures['failed']} failed"
        rate, seconds = figures["request_rate"], figures["duration_s"]
        print(f"rate {rate}: {done}, {seconds:.1f} s", file=sys.stderr)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BenchmarkError(f"cannot write {path}: {error}") from None
