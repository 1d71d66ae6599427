"""Throughput with worker processes against one process, and the cost of their messages.

    python benchmarks/workers.py            # prints the tables
    python benchmarks/workers.py --write    # and writes benchmarks/results/workers.md

Each engine takes turns with one in a single process, and they change places in every round, so that
both meet the same load of the machine. Ratios are medians over the rounds, with their quartiles.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import torch
from collectives import processor

from quire import LLM, SamplingParams
from quire.launch.workers.worker_wire import Completed, Launch
from quire.machine.cores import usable_cores
from quire.messages import ScheduledRequest, SlotResult, StepPlan, StepResult
from quire.process.ipc import encode

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "workers.md"
ENGINES: dict[str, dict[str, Any]] = {
    "processes, tp 1": {"executor": "processes"},
    "processes, tp 2": {"tensor_parallel_size": 2},
    "processes, pp 2": {"pipeline_parallel_size": 2},
}
NUM_PROMPT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one comparison.

    Attributes:
        model: Name of the model for people.
        shape: Shape of random weights; None: the demo model.
        num_requests: Number of requests at once.
        num_tokens: Number of tokens of each completion.
        rounds: Number of rounds.
    """

    model: str
    shape: str | None
    num_requests: int
    num_tokens: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Output tokens per second of both engines of a pair, in each round."""

    base: Sequence[float]
    other: Sequence[float]


LOADS = (
    Load("demo", None, 16, 256, 61),
    Load("5M", "5m", 16, 128, 31),
    Load("Qwen3-0.6B shape", "qwen3-0.6b", 8, 48, 3),
    Load("Qwen3-0.6B shape", "qwen3-0.6b", 1, 48, 3),
)


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/workers.md")
    parser.add_argument("--folder", type=Path, help="folder for the checkpoints, kept afterwards")
    arguments = parser.parse_args()
    load_average = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        rows = [row for load in LOADS for row in compare(load, folder)]
    text = report(rows, message_costs(), load_average)
    print(text)
    if arguments.write:
        RESULTS.write_text(text)


def compare(load: Load, folder: Path) -> list[str]:
    """Return a table row for one process, and one for each kind of worker processes."""
    base = LLM(**options(load, folder))
    try:
        found = {name: alternate(load, folder, base, extra) for name, extra in ENGINES.items()}
    finally:
        base.close()
    return [_base_row(load, found.values()), *(_row(load, *item) for item in found.items())]


def alternate(load: Load, folder: Path, base: LLM, extra: Mapping[str, Any]) -> Rates:
    """Measure an engine in turns with the one in a single process."""
    other = LLM(**options(load, folder), **extra)
    rates: tuple[list[float], list[float]] = ([], [])
    pair = list(zip((base, other), rates, strict=True))
    try:
        for engine, _ in pair:
            rate(engine, load)  # the first requests of an engine are slower
        for _ in range(load.rounds):
            for engine, found in pair:
                found.append(rate(engine, load))
            pair.reverse()
    finally:
        other.close()
    return Rates(*rates)


def options(load: Load, folder: Path) -> dict[str, Any]:
    """Return the options of an engine."""
    if load.shape is None:
        return {"enable_prefix_caching": False}
    target = folder / load.shape
    if not target.exists():
        script = HERE / "cpu" / "checkpoint_files.py"
        subprocess.run([sys.executable, str(script), str(target), load.shape], check=True)
    return {
        "model": str(target),
        "max_model_len": 512,
        "enable_prefix_caching": False,
        "num_kv_blocks": 1024,
    }


def rate(engine: LLM, load: Load) -> float:
    """Return output tokens per second, prompts included."""
    params = SamplingParams(max_tokens=load.num_tokens, temperature=0, ignore_eos=True)
    prompts = [
        {
            "prompt_token_ids": [
                (7 * index + 3 * place) % 200 + 5 for place in range(num_prompt(load))
            ]
        }
        for index in range(load.num_requests)
    ]
    began = time.perf_counter()
    outputs = engine.generate(prompts, params)
    seconds = time.perf_counter() - began
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


def num_prompt(load: Load) -> int:
    """Return the number of tokens of each prompt."""
    return 16 if load.shape is None else NUM_PROMPT_TOKENS


def message_costs() -> list[str]:
    """Return table rows with the cost of a step's messages for numbers of decoding requests."""
    return [_cost_row(num_requests) for num_requests in (1, 16, 64, 256)]


def _cost_row(num_requests: int) -> str:
    plan = StepPlan(
        plan_id=1000, requests=[ScheduledRequest(slot, 1, 1) for slot in range(num_requests)]
    )
    result = StepResult(
        plan_id=1000,
        results=[SlotResult(slot, [50_000 + slot]) for slot in range(num_requests)],
        digest=2**63,
    )
    cells = [str(num_requests)]
    for message in (Launch(plan, []), Completed(result)):
        data = encode(message)
        decoder = msgspec.msgpack.Decoder(type(message))
        cells += [
            str(len(data)),
            f"{microseconds(lambda message=message: encode(message)):.1f}",
            f"{microseconds(lambda data=data, decoder=decoder: decoder.decode(data)):.1f}",
        ]
    return f"| {' | '.join(cells)} |"


def microseconds(function: Callable[[], object]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(300):
        began = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1e3


def report(rows: Sequence[str], costs: Sequence[str], load_average: float) -> str:
    """Return the tables as Markdown."""
    lines = [
        "# Worker processes against one process",
        "",
        f"`python benchmarks/workers.py --write`, {date.today()}: {processor()}, "
        f"{usable_cores()[0]} cores, torch {torch.__version__}; load average before the run "
        f"{load_average:.1f}. Output tokens per second, prompts included ({NUM_PROMPT_TOKENS} "
        "tokens each, 16 for the demo). Each engine takes turns with `in_process`, which has one "
        "worker with all cores in the engine's process. The ratio is the median over the rounds "
        "of its rate to that of `in_process` in the same round, with quartiles.",
        "",
        "| model | requests | tokens | rounds | workers | tokens/s | ratio | quartiles |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "Messages of a decoding step, to and from one rank: bytes, and median microseconds to "
        "encode (a plan once for all ranks) and to decode.",
        "",
        "| requests | plan: bytes | encode | decode | result: bytes | encode | decode |",
        "|---|---|---|---|---|---|---|",
        *costs,
    ]
    return "\n".join(lines) + "\n"


def _base_row(load: Load, found: Iterable[Rates]) -> str:
    rates = [rate for each in found for rate in each.base]
    return _cells(load, "in_process", statistics.median(rates), "1", "")


def _row(load: Load, name: str, rates: Rates) -> str:
    ratios = [other / base for base, other in zip(rates.base, rates.other, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    rate = statistics.median(rates.other)
    return _cells(load, name, rate, f"{median:.3f}", f"{low:.3f} to {high:.3f}")


def _cells(load: Load, name: str, rate: float, ratio: str, quartiles: str) -> str:
    cells = (load.model, load.num_requests, load.num_tokens, load.rounds, name)
    return f"| {' | '.join(map(str, (*cells, f'{rate:,.0f}', ratio, quartiles)))} |"


if __name__ == "__main__":
    main()
