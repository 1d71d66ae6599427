"""`quire bench structured`: what structured output costs, by the share of requests that have it.

Throughput and the time that masks add to a step; the time to compile schemas of several kinds; and
the inter-token latency of other streams while hostile grammars compile.
"""

import argparse
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from quire.cli.bench.bench_arguments import at_least_one
from quire.cli.bench.bench_grammars import (
    CONSTRAINTS,
    SCHEMA_KINDS,
    endless,
    new_schema,
)
from quire.cli.bench.hostile_load import Gaps, StreamLoad, measure_gaps
from quire.cli.bench.tables import machine_info, table_lines
from quire.cli.bench.timed_grammars import MaskTimes, TimedGrammars
from quire.cli.command_parser import CommandParser
from quire.cli.options import add_model_options
from quire.cli.setting_values import read_settings
from quire.config import Settings
from quire.engine.core import EngineCore
from quire.errors import RequestError, SettingsError
from quire.launch.engine import start_engine
from quire.llm import LLM
from quire.sampling_params import SamplingParams, StructuredOutputsParams

SHARES = (0.0, 0.2, 0.8, 1.0)
HEADERS = (
    *("structured", "tokens/s", "of none", "ms/step", "sending ms, median", "p99"),
    *("collecting ms, median", "p99", "both, p99"),
)


def add_arguments(parser: CommandParser) -> None:
    """Declare the measure's arguments."""
    parser.add_argument("--num-prompts", type=at_least_one, default=16, metavar="N")
    parser.add_argument(
        "--num-grammars", type=at_least_one, default=16, metavar="N", help="different ones, in turn"
    )
    parser.add_argument(
        "--constraint", choices=CONSTRAINTS, default="json", help="of the requests of a share"
    )
    parser.add_argument("--input-len", type=at_least_one, default=32, metavar="N", help="tokens")
    parser.add_argument("--output-len", type=at_least_one, default=64, metavar="N", help="tokens")
    parser.add_argument("--repeats", type=at_least_one, default=5, metavar="N", help="timed runs")
    parser.add_argument(
        "--num-schemas", type=at_least_one, default=48, metavar="N", help="to time compiling"
    )
    parser.add_argument(
        "--hostile", action="store_true", help="also measure streams beside hostile grammars"
    )
    add_model_options(parser)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure with the engine that the options describe."""
    settings = read_settings(arguments)
    figures = structured(settings, arguments)
    if arguments.hostile:
        lengths = (arguments.input_len, arguments.output_len)
        load = StreamLoad(arguments.num_prompts, *lengths, arguments.repeats)
        figures["hostile"] = _hostile_figures(measure_gaps(settings, load))
    return figures


def lines(figures: Mapping[str, Any]) -> list[str]:
    """Return a line for each share, the time to compile, and that of other streams."""
    rows = [
        (
            f"{row['share']:.0%}",
            f"{row['output_tokens_per_s']:,.1f}",
            f"{row['of_unstructured']:.2f}",
            f"{row['ms_per_step']:.2f}",
            *(f"{row[name]:.3f}" for name in MASK_FIGURES),
        )
        for row in figures["shares"]
    ]
    compiled = figures["first_token_ms"]
    found = [
        *table_lines(HEADERS, rows),
        f"first token of a new schema, less that of none: median {compiled['median']:.1f} ms, "
        f"p99 {compiled['p99']:.1f} ms; {compiled['refused']} of {compiled['number']} refused",
    ]
    if "hostile" in figures:
        gaps = figures["hostile"]
        found.append(
            "between tokens of plain streams, alone and beside hostile grammars: "
            f"mean {gaps['quiet_mean_ms']:.2f} and {gaps['hostile_mean_ms']:.2f} ms "
            f"({gaps['ratio_of_means']:.2f}), p99 {gaps['quiet_p99_ms']:.2f} and "
            f"{gaps['hostile_p99_ms']:.2f} ms"
        )
    return found


def structured(settings: Settings, arguments: argparse.Namespace) -> dict[str, Any]:
    """Generate greedily for random prompts, all at once, with rotating shares.

    The runs of all shares take turns, so that a change of the machine's speed is in all of them.
    """
    engine = start_engine(settings)
    with LLM.from_engine(engine) as llm:
        if not isinstance(engine.core, EngineCore):
            raise SettingsError("the time of masks is measured in the engine's own process only")
        engine.core.grammars = timed = TimedGrammars(engine.core.grammars)
        bench = _Bench(llm, timed, arguments)
        bench.warm_up()
        first_token_ms = bench.first_token_ms()
        shares = bench.shares()
    return {
        "model": settings.model.model,
        "backend": settings.parts.structured_output,
        "constraint": arguments.constraint,
        "num_prompts": arguments.num_prompts,
        "num_grammars": arguments.num_grammars,
        "input_len": arguments.input_len,
        "output_len": arguments.output_len,
        "repeats": arguments.repeats,
        "first_token_ms": first_token_ms,
        "shares": shares,
        "machine": machine_info(),
    }


class _Bench:
    """Runs of one engine."""

    def __init__(self, llm: LLM, timed: TimedGrammars, arguments: argparse.Namespace) -> None:
        self._llm = llm
        self._timed = timed
        self._arguments = arguments
        self._rng = random.Random(0)
        self._grammars = [
            endless(arguments.constraint, index, arguments.output_len)
            for index in range(arguments.num_grammars)
        ]

    def warm_up(self) -> None:
        """Start the model and the processes of grammars."""
        for _ in range(2):
            self._run([None], 1)
        self._run([new_schema(-1)], 1)

    def first_token_ms(self) -> dict[str, Any]:
        """Measure first tokens of new schemas, less the median of those without."""
        number = self._arguments.num_schemas
        plain_s = statistics.median(self._run([None], 1)[0] for _ in range(9))
        times = []
        for index in range(number):
            try:
                times.append(1000 * (self._run([new_schema(index)], 1)[0] - plain_s))
            except RequestError:  # by a backend that cannot honour this kind
                continue
        return {
            "median": statistics.median(times) if times else 0.0,
            "p99": p99(times),
            "number": number,
            "refused": number - len(times),
            "kinds": [kind.__name__.strip("_") for kind in SCHEMA_KINDS],
        }

    def shares(self) -> list[dict[str, Any]]:
        """Measure throughput and masks of each share."""
        runs: dict[float, list[tuple[float, int]]] = {share: [] for share in SHARES}
        times: dict[float, list[MaskTimes]] = {share: [] for share in SHARES}
        for repeat in range(self._arguments.repeats + 1):
            for share in SHARES:
                self._timed.times.clear()
                timed = self._run(self._constraints(share), self._arguments.output_len)
                if repeat:
                    runs[share].append(timed)
                    times[share].extend(self._timed.times)
        speeds = {
            share: statistics.median(tokens / seconds for seconds, tokens in timed)
            for share, timed in runs.items()
        }
        return [
            {
                "share": share,
                "output_tokens_per_s": speed,
                "of_unstructured": speed / speeds[0.0],
                "ms_per_step": 1000 * self._arguments.num_prompts / speed,
                **_mask_figures(times[share]),
            }
            for share, speed in speeds.items()
        ]

    def _constraints(self, share: float) -> list[StructuredOutputsParams | None]:
        num_prompts = self._arguments.num_prompts
        num_structured = round(share * num_prompts)
        with_grammar = [self._grammars[i % len(self._grammars)] for i in range(num_structured)]
        return [*with_grammar, *[None] * (num_prompts - num_structured)]

    def _run(
        self, constraints: Sequence[StructuredOutputsParams | None], max_tokens: int
    ) -> tuple[float, int]:
        """Return the seconds of a run, and its number of tokens."""
        vocab_size = self._llm.composition.description.vocab_size
        input_len = self._arguments.input_len
        prompts = [[self._rng.randrange(vocab_size) for _ in range(input_len)] for _ in constraints]
        params = [_params(constraint, max_tokens) for constraint in constraints]
        started_s = time.perf_counter()
        outputs = self._llm.generate(prompts, params)
        seconds = time.perf_counter() - started_s
        return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)


MASK_FIGURES = ("sending_ms", "sending_p99_ms", "collecting_ms", "collecting_p99_ms", "both_p99_ms")


def _mask_figures(times: Sequence[MaskTimes]) -> dict[str, float]:
    """Return medians and 99th percentiles over the steps with masks; 0.0: there are none."""
    if not times:
        return dict.fromkeys(MASK_FIGURES, 0.0)
    sending, collecting = zip(*times, strict=True)
    return {
        "sending_ms": statistics.median(sending),
        "sending_p99_ms": p99(sending),
        "collecting_ms": statistics.median(collecting),
        "collecting_p99_ms": p99(collecting),
        "both_p99_ms": p99([sum(each) for each in times]),
    }


def _hostile_figures(gaps: Gaps) -> dict[str, Any]:
    quiet, disturbed = statistics.mean(gaps.quiet), statistics.mean(gaps.hostile)
    return {
        "quiet_mean_ms": quiet,
        "hostile_mean_ms": disturbed,
        "ratio_of_means": disturbed / quiet,
        "quiet_median_ms": statistics.median(gaps.quiet),
        "hostile_median_ms": statistics.median(gaps.hostile),
        "quiet_p99_ms": p99(gaps.quiet),
        "hostile_p99_ms": p99(gaps.hostile),
    }


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile, 0.0 of nothing."""
    return sorted(values)[round(0.99 * (len(values) - 1))] if values else 0.0


def _params(constraint: StructuredOutputsParams | None, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, structured_outputs=constraint
    )
