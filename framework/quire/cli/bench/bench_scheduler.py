"""`quire bench scheduler`: CPU time of the engine itself, around workers that do nothing.

Three quantities are varied, each alone: running requests, tokens of each, blocks in the pool. The
cost of a step is the mean of `BLOCK_SIZE` steps, in which every request needs one new block.
"""

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, TypeVar

from quire.cli.bench.bench_arguments import at_least_one
from quire.cli.bench.interval import Figure
from quire.cli.bench.null_engine import (
    BLOCK_SIZE,
    EngineParts,
    IdleRunner,
    Workload,
    compute,
    make_core,
    make_message,
    start_decoding,
)
from quire.cli.bench.tables import machine_info, table_lines
from quire.cli.command_parser import CommandParser
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.request import Request

RUNNING = [1, 8, 32, 128, 512, 1024]
CONTEXTS = [128, 1024, 8192, 32_768, 131_072]
POOL_SIZES = [1000, 10_000, 100_000, 1_000_000]
PROMPT_BLOCKS = [1, 8, 64, 512, 4096]
CONTEXT_SWEEP_RUNNING = 32  # requests that run while the context grows
POOL_SWEEP_WORKLOAD = Workload(16, 128, is_pool_full=True)
WARM_UP_ROUNDS = 2
US = 1e6

T = TypeVar("T")


def add_arguments(parser: CommandParser) -> None:
    """Declare the measure's arguments."""
    sweeps = (
        ("--running", RUNNING, "requests that run"),
        ("--contexts", CONTEXTS, "tokens of each request"),
        ("--pool-sizes", POOL_SIZES, "KV blocks in the pool"),
        ("--prompt-blocks", PROMPT_BLOCKS, "blocks of a new prompt"),
    )
    for flag, default, what in sweeps:
        shown = " ".join(map(str, default))
        parser.add_argument(
            flag, type=_size, nargs="*", default=default, metavar="N", help=f"{what}: {shown}"
        )
    parser.add_argument(
        "--rounds", type=at_least_one, default=30, metavar="N", help="samples of each figure"
    )


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure every workload, and the cost of a prompt's blocks."""
    parts, rounds = EngineParts.load(), arguments.rounds
    workloads = _workloads(arguments.running, arguments.contexts, arguments.pool_sizes)
    return {
        "block_size": BLOCK_SIZE,
        "rounds": rounds,
        "steps": [measure_workload(parts, workload, rounds) for workload in workloads],
        "prompts": [measure_prompt(parts, blocks, rounds) for blocks in arguments.prompt_blocks],
        "machine": machine_info(),
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the tables."""
    return [
        "CPU microseconds of one decode step (median, 95 % interval)",
        *table_lines(STEP_HEADERS, [_step_row(step) for step in figures["steps"]]),
        "",
        "net: without the workers' time; full pool: each block allocated evicts a cached one",
        "",
        "CPU microseconds for the blocks of one new prompt",
        *table_lines(PROMPT_HEADERS, [_prompt_row(row) for row in figures["prompts"]]),
    ]


# -- decode steps ----------------------------------------------------------------------------------


def measure_workload(parts: EngineParts, workload: Workload, rounds: int) -> dict[str, Any]:
    """Measure one decode step of a workload.

    Raises:
        CapacityError: The pool is too small for so many rounds.
    """
    workload = replace(workload, num_steps=(rounds + WARM_UP_ROUNDS + 1) * BLOCK_SIZE)
    core, runner = make_core(parts, workload)
    start_decoding(core, workload)
    samples = cost_of_steps(core.step, rounds + WARM_UP_ROUNDS)[WARM_UP_ROUNDS:]
    step = Figure.of(samples, US)
    idle = Figure.of(cost_of_runner(runner, rounds), US)
    net = step.less(idle.median)
    return {
        **asdict(workload),
        "num_blocks": core.scheduler.kv.pool.num_blocks,
        "step_us": step._asdict(),
        "executor_us": idle._asdict(),
        "net_us": net._asdict(),
        "us_a_request": step.divided_by(workload.num_running)._asdict(),
        "net_us_a_request": net.divided_by(workload.num_running)._asdict(),
    }


def cost_of_steps(step: Callable[[], object], rounds: int) -> list[float]:
    """Return the CPU seconds per step, one sample for each round of `BLOCK_SIZE` steps."""
    samples = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(BLOCK_SIZE):
            step()
        samples.append((time.process_time() - started) / BLOCK_SIZE)
    return samples


def cost_of_runner(runner: IdleRunner, rounds: int) -> list[float]:
    """Return the CPU seconds of the workers alone per step, with the plan that they ran last.

    Raises:
        RuntimeError: They have run no plan.
    """
    plan = runner.last_plan
    if plan is None:
        raise RuntimeError("the workers have computed nothing yet")

    def idle() -> None:
        runner.execute(plan)
        runner.sample(plan.plan_id, ())
        runner.collect(plan.plan_id)

    return cost_of_steps(idle, rounds)


def _workloads(
    running: Iterable[int], contexts: Iterable[int], pool_sizes: Iterable[int]
) -> list[Workload]:
    alone = [
        Workload(num, async_scheduling=async_scheduling)
        for async_scheduling in (False, True)
        for num in running
    ]
    return [
        *alone,
        *(Workload(CONTEXT_SWEEP_RUNNING, context) for context in contexts),
        *(replace(POOL_SWEEP_WORKLOAD, num_blocks=size) for size in pool_sizes),
    ]


# -- the blocks of a prompt ------------------------------------------------------------------------


def measure_prompt(parts: EngineParts, num_blocks: int, rounds: int) -> dict[str, Any]:
    """Measure the cost of the blocks of one new prompt: to hash, look up, adopt and free them.

    The prompt is computed once before, so that a lookup finds every block.
    """
    workload = Workload(1, num_blocks * BLOCK_SIZE, num_blocks=2 * num_blocks + 4, num_steps=1)
    core, _ = make_core(parts, workload)
    kv = core.scheduler.kv
    num_tokens = num_blocks * BLOCK_SIZE + 1  # the last token is never looked up
    compute(core, make_message("known", num_tokens, 1, first=0))
    operations: dict[str, list[float]] = {
        "name": [],
        "hit": [],
        "miss": [],
        "adopt": [],
        "free": [],
    }
    for _ in range(rounds):
        _time_operations(kv, num_tokens, operations)
    return {
        "num_blocks": num_blocks,
        **{
            f"{operation}_us": Figure.of(samples, US)._asdict()
            for operation, samples in operations.items()
        },
    }


def _time_operations(
    kv: KVCacheManager, num_tokens: int, operations: dict[str, list[float]]
) -> None:
    """Take one sample of each operation.

    Raises:
        RuntimeError: The prompt that was computed before is not in the prefix cache.
    """
    known = Request(make_message("again", num_tokens, 1, first=0), len(kv.specs))
    other = Request(make_message("other", num_tokens, 1, first=1), len(kv.specs))
    kv.prepare(other)
    _timed(operations["name"], lambda: kv.prepare(known))
    _timed(operations["miss"], lambda: kv.find_prefix(other))
    hit = _timed(operations["hit"], lambda: kv.find_prefix(known))
    if hit is None:
        raise RuntimeError(
            f"a prompt of {num_tokens} tokens was computed and is not in the prefix cache"
        )
    _timed(operations["adopt"], lambda: kv.attach_prefix(known, hit))
    _timed(operations["free"], lambda: kv.free(kv.detach_tables(known)))


def _timed(samples: list[float], work: Callable[[], T]) -> T:
    started = time.process_time()
    result = work()
    samples.append(time.process_time() - started)
    return result


# -- tables ----------------------------------------------------------------------------------------

STEP_HEADERS = ("running", "context", "pool", "", "step", "a request", "net, a request")
PROMPT_HEADERS = ("blocks", "name", "find all", "find none", "adopt", "free")


def _step_row(step: dict[str, Any]) -> list[str]:
    notes = ["async"] * step["async_scheduling"] + ["full pool"] * step["is_pool_full"]
    return [
        f"{step['num_running']:,}",
        f"{step['context']:,}",
        f"{step['num_blocks']:,}",
        ", ".join(notes),
        Figure(**step["step_us"]).show(0),
        Figure(**step["us_a_request"]).show(),
        f"{step['net_us_a_request']['median']:.2f}",
    ]


def _prompt_row(row: dict[str, Any]) -> list[str]:
    operations = (
        Figure(**row[f"{operation}_us"]) for operation in ("name", "hit", "miss", "adopt", "free")
    )
    return [f"{row['num_blocks']:,}", *(figure.show(1) for figure in operations)]


def _size(text: str) -> int:
    """Parse an integer; 1e6 and 100_000 are accepted too."""
    number = float(text)
    if number < 1 or number != int(number):
        raise argparse.ArgumentTypeError("must be a whole number from 1 on")
    return int(number)
