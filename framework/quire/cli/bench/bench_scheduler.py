"""`quire bench scheduler`: CPU time of the engine itself, around workers that do nothing.

Three things may grow: requests that run, tokens of each, blocks in the pool. Each is varied alone.
A step costs its share of a round of `BLOCK_SIZE` steps, in which every request needs one new block.
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
    IdleExecutor,
    Scene,
    begin,
    compute,
    make_core,
    make_message,
)
from quire.cli.bench.tables import surroundings, table_lines
from quire.engine.kv_cache.kv_cache_manager import KVCacheManager
from quire.engine.request import Request

RUNNING = [1, 8, 32, 128, 512, 1024]
CONTEXTS = [128, 1024, 8192, 32_768, 131_072]
POOL_SIZES = [1000, 10_000, 100_000, 1_000_000]
PROMPT_BLOCKS = [1, 8, 64, 512, 4096]
BESIDE_CONTEXT = 32  # requests that run while the context grows
BESIDE_POOL = Scene(16, 128, is_pool_full=True)
WARM_UP_ROUNDS = 2
US = 1e6

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    """Measure every scene, and the cost of a prompt's blocks."""
    parts, rounds = EngineParts.load(), arguments.rounds
    scenes = _scenes(arguments.running, arguments.contexts, arguments.pool_sizes)
    return {
        "block_size": BLOCK_SIZE,
        "rounds": rounds,
        "steps": [measure_scene(parts, scene, rounds) for scene in scenes],
        "prompts": [measure_prompt(parts, blocks, rounds) for blocks in arguments.prompt_blocks],
        "machine": surroundings(),
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the tables."""
    return [
        "CPU microseconds of one decode step (median, 95 % interval)",
        *table_lines(STEP_HEADERS, [_step_row(step) for step in figures["steps"]]),
        "",
        "net: without the workers' share; full pool: each block taken drives a cached one out",
        "",
        "CPU microseconds for the blocks of one new prompt",
        *table_lines(PROMPT_HEADERS, [_prompt_row(row) for row in figures["prompts"]]),
    ]


# -- decode steps ----------------------------------------------------------------------------------


def measure_scene(parts: EngineParts, scene: Scene, rounds: int) -> dict[str, Any]:
    """Measure one decode step of a scene.

    Raises:
        CapacityError: Its pool is too small for so many rounds.
    """
    scene = replace(scene, num_steps=(rounds + WARM_UP_ROUNDS + 1) * BLOCK_SIZE)
    core, executor = make_core(parts, scene)
    begin(core, scene)
    samples = cost_of_steps(core.step, rounds + WARM_UP_ROUNDS)[WARM_UP_ROUNDS:]
    step = Figure.of(samples, US)
    idle = Figure.of(cost_of_idling(executor, rounds), US)
    net = step.less(idle.median)
    return {
        **asdict(scene),
        "num_blocks": core.scheduler.kv.pool.num_blocks,
        "step_us": step._asdict(),
        "executor_us": idle._asdict(),
        "net_us": net._asdict(),
        "us_a_request": step.divided_by(scene.num_running)._asdict(),
        "net_us_a_request": net.divided_by(scene.num_running)._asdict(),
    }


def cost_of_steps(step: Callable[[], object], rounds: int) -> list[float]:
    """Return the CPU seconds of one step, a sample for each round of `BLOCK_SIZE` steps."""
    samples = []
    for _ in range(rounds):
        started = time.process_time()
        for _ in range(BLOCK_SIZE):
            step()
        samples.append((time.process_time() - started) / BLOCK_SIZE)
    return samples


def cost_of_idling(executor: IdleExecutor, rounds: int) -> list[float]:
    """Return what the workers alone take of a step, with the plan that they were given last.

    Raises:
        RuntimeError: They were never given one.
    """
    plan = executor.last_plan
    if plan is None:
        raise RuntimeError("the workers have computed nothing yet")

    def idle() -> None:
        executor.execute(plan)
        executor.sample(plan.plan_id, ())
        executor.collect(plan.plan_id)

    return cost_of_steps(idle, rounds)


def _scenes(
    running: Iterable[int], contexts: Iterable[int], pool_sizes: Iterable[int]
) -> list[Scene]:
    alone = [
        Scene(num, async_scheduling=async_scheduling)
        for async_scheduling in (False, True)
        for num in running
    ]
    return [
        *alone,
        *(Scene(BESIDE_CONTEXT, context) for context in contexts),
        *(replace(BESIDE_POOL, num_blocks=size) for size in pool_sizes),
    ]


# -- the blocks of a prompt ------------------------------------------------------------------------


def measure_prompt(parts: EngineParts, num_blocks: int, rounds: int) -> dict[str, Any]:
    """Measure what the blocks of one new prompt cost: to name, to look up, to adopt and to free.

    The prompt is computed once before, so that a lookup finds every block.
    """
    scene = Scene(1, num_blocks * BLOCK_SIZE, num_blocks=2 * num_blocks + 4, num_steps=1)
    core, _ = make_core(parts, scene)
    kv = core.scheduler.kv
    num_tokens = num_blocks * BLOCK_SIZE + 1  # the last token is never looked up
    compute(core, make_message("known", num_tokens, 1, first=0))
    verbs: dict[str, list[float]] = {"name": [], "hit": [], "miss": [], "adopt": [], "free": []}
    for _ in range(rounds):
        _time_verbs(kv, num_tokens, verbs)
    return {
        "num_blocks": num_blocks,
        **{f"{verb}_us": Figure.of(samples, US)._asdict() for verb, samples in verbs.items()},
    }


def _time_verbs(kv: KVCacheManager, num_tokens: int, verbs: dict[str, list[float]]) -> None:
    """Take one sample of each verb.

    Raises:
        RuntimeError: The prompt that was computed before is not found.
    """
    known = Request(make_message("again", num_tokens, 1, first=0), len(kv.specs))
    other = Request(make_message("other", num_tokens, 1, first=1), len(kv.specs))
    kv.prepare(other)
    _timed(verbs["name"], lambda: kv.prepare(known))
    _timed(verbs["miss"], lambda: kv.find_prefix(other))
    hit = _timed(verbs["hit"], lambda: kv.find_prefix(known))
    if hit is None:
        raise RuntimeError(f"a prompt of {num_tokens} tokens was computed and is not found")
    _timed(verbs["adopt"], lambda: kv.adopt(known, hit))
    _timed(verbs["free"], lambda: kv.give_back(kv.release(known)))


def _timed(samples: list[float], work: Callable[[], T]) -> T:
    started = time.process_time()
    answer = work()
    samples.append(time.process_time() - started)
    return answer


# -- for people ------------------------------------------------------------------------------------

STEP_HEADERS = ("running", "context", "pool", "", "step", "a request", "net, a request")
PROMPT_HEADERS = ("blocks", "name", "find all", "find none", "adopt", "free")


def _step_row(step: dict[str, Any]) -> list[str]:
    notes = ["ahead"] * step["async_scheduling"] + ["full pool"] * step["is_pool_full"]
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
    verbs = (Figure(**row[f"{verb}_us"]) for verb in ("name", "hit", "miss", "adopt", "free"))
    return [f"{row['num_blocks']:,}", *(figure.show(1) for figure in verbs)]


def _size(text: str) -> int:
    """Read a whole number; 1e6 and 100_000 are numbers too."""
    number = float(text)
    if number < 1 or number != int(number):
        raise argparse.ArgumentTypeError("must be a whole number from 1 on")
    return int(number)
