"""How the engine's own work grows, counted without a clock.

Two counts, since one alone can be fooled: Python instructions (a loop in C is one), and the bytes
that are held at the same time (a copy of a list is many). Both are exact, on any machine.
"""

import gc
import sys
import tracemalloc
from dataclasses import dataclass

import pytest

from quire.cli.bench.null_engine import (
    BLOCK_SIZE,
    FULL_ATTENTION,
    EngineParts,
    Workload,
    compute,
    fill_pool,
    make_core,
    make_message,
    start_decoding,
)
from quire.engine.request import Request
from quire.interfaces.kv_cache import KVLayer

PARTS = EngineParts.load()
MODES = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
EVERY_KIND = [
    FULL_ATTENTION,
    KVLayer("layers.1", "sliding_window", 1, 16, (("window", 64),)),
    KVLayer("layers.2", "chunked_local_attention", 1, 16, (("chunk", 64),)),
    KVLayer("layers.3", "recurrent_state", 1, 16, (("state_shapes", ((1, 16),)),)),
]
SLACK_BYTES = 4096  # less than a copy of anything that a longer context or a larger pool has more


def instructions(work):
    """Return how many Python instructions `work` executes."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()  # what others do when garbage is collected is not to be counted
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def peak_bytes(work):
    """Return how many bytes more than before `work` holds at some time."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@dataclass
class Cost:
    """Of a round of steps in which every request needs one block."""

    instructions: int
    peak_bytes: int


def cost_of_round(parts=PARTS, **workload):
    core = running_core(parts, **workload)

    def one_round():
        for _ in range(BLOCK_SIZE):
            core.step()

    one_round()  # what is done once is done
    counted = instructions(one_round)
    # A list that is full grows by a part of its length, now and then: not in every round.
    return Cost(counted, min(peak_bytes(one_round) for _ in range(3)))


def running_core(parts=PARTS, **workload):
    workload = Workload(**workload, num_steps=8 * BLOCK_SIZE)
    core, _ = make_core(parts, workload)
    start_decoding(core, workload)
    return core


def parts_with(work):
    """Return parts whose spec does some work whenever a request needs a block."""

    class Wasteful(type(PARTS.specs[0])):
        def blocks_needed(self, num_tokens, num_lookahead_tokens=0):
            work(num_tokens)
            return super().blocks_needed(num_tokens, num_lookahead_tokens)

    return EngineParts((Wasteful(FULL_ATTENTION, BLOCK_SIZE, "float32"),), PARTS.policy)


def loop(count):
    for _ in range(count):
        pass


def is_flat(small, large):
    """Whether the cost beside something large is the cost beside something small."""
    return (
        small.instructions == large.instructions
        and large.peak_bytes < small.peak_bytes + SLACK_BYTES
    )


# -- a decode step ---------------------------------------------------------------------------------


@MODES
def test_a_step_is_linear_in_the_requests_that_run(async_scheduling):
    counts = [
        cost_of_round(num_running=num, async_scheduling=async_scheduling) for num in (16, 32, 64)
    ]
    assert is_linear([cost.instructions for cost in counts])
    one, two, four = (cost.peak_bytes for cost in counts)
    assert two <= 2 * one + SLACK_BYTES
    assert four <= 2 * two + SLACK_BYTES


@MODES
def test_a_step_is_flat_in_the_context(async_scheduling):
    short, long, longer = (
        cost_of_round(num_running=4, context=context, async_scheduling=async_scheduling)
        for context in (128, 1024, 16_384)
    )
    assert is_flat(short, long), (short, long)
    assert is_flat(short, longer), (short, longer)


@MODES
def test_a_step_is_flat_in_the_context_for_layers_of_every_kind(async_scheduling):
    parts = EngineParts.load(EVERY_KIND)
    short, long = (
        cost_of_round(parts, num_running=4, context=context, async_scheduling=async_scheduling)
        for context in (512, 8192)
    )
    assert is_flat(short, long), (short, long)


@MODES
@pytest.mark.parametrize("is_pool_full", [False, True], ids=["blank blocks", "cached blocks"])
def test_a_step_is_flat_in_the_pool(async_scheduling, is_pool_full):
    workload = {
        "num_running": 4,
        "async_scheduling": async_scheduling,
        "is_pool_full": is_pool_full,
    }
    small, large = (cost_of_round(num_blocks=size, **workload) for size in (1000, 20_000))
    assert is_flat(small, large), (small, large)


def test_work_for_every_block_of_a_request_would_be_seen():
    parts = parts_with(lambda num_tokens: loop(num_tokens // BLOCK_SIZE))
    short, long = (cost_of_round(parts, num_running=2, context=context) for context in (128, 256))
    assert not is_flat(short, long)


def test_a_copy_of_a_request_s_tokens_would_be_seen():
    parts = parts_with(lambda num_tokens: list(range(num_tokens)))
    short, long = (cost_of_round(parts, num_running=2, context=context) for context in (1024, 4096))
    assert short.instructions == long.instructions, "it is hidden from this count"
    assert not is_flat(short, long)


def test_work_for_every_block_of_the_pool_would_be_seen():
    def cost(num_blocks):
        parts = parts_with(lambda num_tokens: loop(num_blocks))
        return cost_of_round(parts, num_running=2, context=128, num_blocks=num_blocks)

    assert not is_flat(cost(100), cost(200))


def test_work_for_every_pair_of_requests_would_be_seen():
    def cost(num_running):
        parts = parts_with(lambda num_tokens: loop(num_running))
        return cost_of_round(parts, num_running=num_running, context=128).instructions

    assert not is_linear([cost(num) for num in (16, 32, 64)])


def is_linear(counts):
    """Whether counts for n, 2n and 4n grow with n: twice the n is twice the work, at most."""
    one, two, four = counts
    step, twice = two - one, four - two
    return two <= 2 * one and four <= 2 * two and step > 0 and abs(twice - 2 * step) <= step / 50


# -- requests come and go --------------------------------------------------------------------------


def test_to_add_and_to_abort_is_flat_in_the_others():
    few, many = (add_and_abort(running_core(num_running=num)) for num in (8, 128))
    assert few == many


def test_to_add_and_to_abort_is_flat_in_those_that_wait():
    few, many = (add_and_abort(core_with_queue(num)) for num in (1, 1000))
    assert few == many


def test_a_step_is_flat_in_those_that_wait():
    few, many = (core_with_queue(num) for num in (1, 1000))
    assert instructions(few.step) == instructions(many.step)


def core_with_queue(num_waiting):
    core = running_core(num_running=2)
    for index in range(num_waiting):
        core.add(make_message(f"w{index}", 100, 4, first=1000 + index))
    return core


def add_and_abort(core):
    message = make_message("new", 100, 4, first=-1)
    to_add = instructions(lambda: core.add(message))
    return to_add, instructions(lambda: core.abort(["new"]))


def test_to_end_a_running_request_is_flat_in_the_others():
    few, many = (running_core(num_running=num) for num in (8, 128))
    assert instructions(lambda: few.abort(["r4"])) == instructions(lambda: many.abort(["r4"]))


def test_to_begin_is_flat_in_the_others():
    def cost_of_step(num_running, num_new):
        core = running_core(num_running=num_running)
        core.abort(["r2", "r3"])
        for index in range(num_new):
            core.add(make_message(f"new{index}", 100, 4, first=-index))
        return instructions(core.step)

    def cost_to_begin(num_running):
        return cost_of_step(num_running, 2) - cost_of_step(num_running, 1)

    assert cost_to_begin(8) == cost_to_begin(64)


# -- the blocks of a prompt ------------------------------------------------------------------------


def test_a_lookup_is_linear_in_the_blocks_of_the_prompt():
    costs = [cost_of_prompt(num_blocks) for num_blocks in (64, 128, 256)]
    assert is_linear([cost["find"] for cost in costs])


def test_a_lookup_that_finds_nothing_is_flat_in_the_prompt():
    short, long = (cost_of_prompt(num_blocks) for num_blocks in (8, 256))
    assert short["miss"] == long["miss"]


def test_to_free_is_linear_in_the_request_s_blocks():
    costs = [cost_of_prompt(num_blocks) for num_blocks in (64, 128, 256)]
    assert is_linear([cost["free"] for cost in costs])


def test_a_prompt_s_blocks_cost_the_same_in_any_pool():
    assert cost_of_prompt(32, pool_size=100) == cost_of_prompt(32, pool_size=10_000)


def cost_of_prompt(num_blocks, pool_size=1000):
    """Count what the blocks of a new prompt cost, in a pool that is full of other prefixes."""
    core, _ = make_core(PARTS, Workload(1, num_blocks * BLOCK_SIZE, pool_size, num_steps=1))
    fill_pool(core)
    num_tokens = num_blocks * BLOCK_SIZE + 1
    compute(core, make_message("known", num_tokens, 1))
    kv = core.scheduler.kv
    known = Request(make_message("again", num_tokens, 1), len(kv.specs))
    other = Request(make_message("other", num_tokens, 1, first=1), len(kv.specs))
    kv.prepare(other)
    kv.prepare(known)
    hit = kv.find_prefix(known)
    assert hit is not None
    assert hit.num_blocks == num_blocks
    return {
        "find": instructions(lambda: kv.find_prefix(known)),
        "miss": instructions(lambda: kv.find_prefix(other)),
        "adopt": instructions(lambda: kv.attach_prefix(known, hit)),
        "free": instructions(lambda: kv.free(kv.detach_tables(known))),
    }
