"""Tensors of a traced step are in fixed memory; tensors that are alive never overlap."""

import ctypes
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from quire.native.tracing import CallTrace, trace_calls
from quire.worker.graphs.cpu_graph_memory import (
    ALIGNMENT,
    CHUNK_BYTES,
    GraphAllocator,
    GraphMemory,
    TracingMode,
)

SIZES = st.sampled_from((1, 64, 65, 4096, 100_000, CHUNK_BYTES // 2 + 1, CHUNK_BYTES + 1))


def span(block):
    begin = ctypes.addressof(block)
    return range(begin, begin + len(block))


@given(st.lists(st.tuples(SIZES, st.integers(0, 3)), max_size=40))
def test_blocks_that_are_alive_never_overlap(needs):
    blocks, alive = GraphAllocator(GraphMemory()), []
    for size, number in needs:
        if number == 0 and alive:
            del alive[len(alive) // 2]
        block = blocks.allocate(size)
        assert len(block) == size
        assert ctypes.addressof(block) % ALIGNMENT == 0
        mine = span(block)
        for other in map(span, alive):
            assert mine.stop <= other.start or other.stop <= mine.start
        alive.append(block)


def test_what_is_let_go_is_taken_by_the_next_one_of_its_size():
    blocks = GraphAllocator(GraphMemory())
    first, other = blocks.allocate(1000), blocks.allocate(1000)
    where = ctypes.addressof(first)
    del first
    assert ctypes.addressof(blocks.allocate(1024)) == where
    assert ctypes.addressof(other) != where


def test_steps_share_their_memory():
    memory = GraphMemory()
    assert ctypes.addressof(GraphAllocator(memory).allocate(10)) == ctypes.addressof(
        GraphAllocator(memory).allocate(99)
    )
    large = CHUNK_BYTES * 2
    assert ctypes.addressof(GraphAllocator(memory).allocate(large)) == ctypes.addressof(
        GraphAllocator(memory).allocate(large)
    )


def in_step_memory(run):
    """Run it as a step is traced; returns its result, and why it cannot be replayed."""
    with (
        torch.inference_mode(),
        trace_calls() as calls,
        TracingMode(GraphAllocator(GraphMemory()), calls),
    ):
        result = run()
    return result, calls.reason


def test_tensors_and_their_views_are_in_it():
    x = torch.ones(3, 5, dtype=torch.float64)

    def run():
        tensors = [
            torch.empty(4, 6),
            torch.empty(0 + 7, dtype=torch.int32),
            x.new_empty(2, 3),
            torch.empty_like(x),
        ]
        views = tensors[0].view(-1, 3)[1:].reshape(7, 3).unsqueeze(0)
        return tensors, views, x.contiguous(), x.to(torch.float64)

    (tensors, views, *same), reason = in_step_memory(run)
    assert reason is None
    assert [(list(t.shape), t.dtype) for t in tensors] == [
        ([4, 6], torch.float32),
        ([7], torch.int32),
        ([2, 3], torch.float64),
        ([3, 5], torch.float64),
    ]
    addresses = [t.data_ptr() for t in tensors]
    assert max(addresses) - min(addresses) < 4096
    assert views.data_ptr() == addresses[0] + 12
    assert all(x is other for other in same)


def test_integers_that_no_call_has_written_are_valid_indices():
    table = torch.arange(6.0).view(3, 2)

    def run():
        [torch.empty(4) + 1.5 for _ in range(3)].clear()  # the ids get their memory
        ids = torch.empty(4, dtype=torch.int32)
        return functional.embedding(ids, table)

    rows, reason = in_step_memory(run)
    assert reason is None
    assert rows.tolist() == [[0, 1]] * 4


def test_a_tensor_that_only_a_view_refers_to_keeps_its_memory():
    def run():
        views = [torch.empty(16).view(4, 4)[1] for _ in range(4)]
        return [view.data_ptr() for view in views], views

    (addresses, _), reason = in_step_memory(run)
    assert len(set(addresses)) == 4
    assert reason is None


def test_rows_of_an_embedding_are_looked_up_again():
    weight, ids = torch.arange(12.0, dtype=torch.bfloat16).view(4, 3), torch.tensor([2, 0])
    with (
        torch.inference_mode(),
        trace_calls() as calls,
        TracingMode(GraphAllocator(GraphMemory()), calls),
    ):
        rows = functional.embedding(ids, weight).to(torch.float32)
    assert calls.reason is None
    assert rows.tolist() == [[6, 7, 8], [0, 1, 2]]
    ids.copy_(torch.tensor([1, 3]))
    with torch.inference_mode():
        calls.replay()
    assert rows.tolist() == [[3, 4, 5], [9, 10, 11]]
    assert rows.dtype == torch.float32


def test_in_place_operators_are_replayed():
    x, more = torch.ones(4), torch.arange(4.0)

    with (
        torch.inference_mode(),
        trace_calls() as calls,
        TracingMode(GraphAllocator(GraphMemory()), calls),
    ):
        x[1:].mul_(3.0).add_(more[1:])
    assert calls.reason is None
    assert x.tolist() == [1, 1, 1, 1]
    calls.replay()
    assert x.tolist() == [1, 4, 5, 6]
    calls.replay()
    assert x.tolist() == [1, 13, 17, 21]


ROWS = torch.tensor([2, 0])
COMPUTED_AGAIN = {
    "sum": lambda x, y: x + y,
    "sum with a factor": lambda x, y: torch.add(x, y, alpha=3),
    "product with a number": lambda x, y: (x * 2.5) * y,
    "difference and quotient": lambda x, y: (x - 1) / (y.abs() + 1),
    "bounds": lambda x, y: x.clamp(-0.5, 0.7) + y.clamp_(max=0.2),
    "logarithm of a position": lambda x, y: (x / 16).floor().log1p().mul_(0.1).add_(1.0),
    "rotation": lambda x, y: torch.addcmul(x * y, x.roll(2, -1), y),
    "rows of a table": lambda x, y: x.index_select(0, ROWS),
    "transposed": lambda x, y: x.t().contiguous() + y.t().reshape(4, 3),
    "concatenated": lambda x, y: torch.cat((x, y), 1) + torch.cat((y, x), 1),
    "half precision": lambda x, y: (x.bfloat16() * 1.7 + y.bfloat16()).float(),
    "layer norm": lambda x, y: functional.layer_norm(x, (4,), y[0], y[1]),
    "rms norm": lambda x, y: functional.rms_norm(x, (4,), None, 1e-6) * y,
    "mean square": lambda x, y: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt(),
    "gelu": lambda x, y: functional.gelu(x) * torch.sigmoid(y),
    "choice": lambda x, y: torch.where(x.ge(0.0), x, y.exp()),
    "best of shards": lambda x, y: torch.stack((x, y)).gather(
        0, torch.stack((x, y)).argmax(0, keepdim=True)
    ),
    "copy": lambda x, y: torch.empty_like(x).copy_(y).neg_(),
}


@pytest.mark.parametrize("what", COMPUTED_AGAIN)
def test_operators_around_kernels_compute_again_from_what_lies_there_then(what):
    def numbers(seed: int) -> list[torch.Tensor]:
        return list(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed)))

    compute, inputs, memory = COMPUTED_AGAIN[what], numbers(0), GraphMemory()
    with (
        torch.inference_mode(),
        trace_calls() as calls,
        TracingMode(GraphAllocator(memory), calls),
    ):
        result = compute(*inputs)
    assert calls.reason is None
    with torch.inference_mode():
        calls.replay()
        assert torch.equal(result, compute(*numbers(0)))
        memory.clear()
        for one, other in zip(inputs, numbers(1), strict=True):
            one.copy_(other)
        calls.replay()
        assert torch.equal(result, compute(*numbers(1)))


def test_what_lies_in_a_list_of_operands_is_named():
    x, y = torch.ones(2), torch.ones(3)
    mode = TracingMode(GraphAllocator(GraphMemory()), CallTrace())
    with torch.inference_mode(), mode:
        result = torch.cat((x, y))
    assert mode.operands == {one.untyped_storage().data_ptr() for one in (x, y, result)}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: torch.ones(3), "aten.ones"),
        (lambda: torch.empty(2, 2) @ torch.empty(2, 2), "aten.matmul"),
        (lambda: torch.empty(4).zero_(), "aten.zero_"),
        (lambda: torch.empty(4)[torch.empty(2, dtype=torch.int64)], "aten.index"),
        (lambda: torch.empty(3).sum().item(), "aten.sum"),
        (lambda: torch.empty(3).max().item(), "aten.max"),
        (lambda: torch.empty(3, 4).t() + 1.0, "it allocates [4, 3] on cpu"),
        (lambda: torch.empty(0), "it allocates [0] on cpu"),
        (lambda: torch.empty(2, device="meta"), "it allocates [2] on meta"),
        (lambda: torch.empty_strided((2, 2), (1, 2)), "it allocates [2, 2] on cpu"),
    ],
)
def test_other_operators_of_torch_cannot_be_traced(run, expected):
    _, reason = in_step_memory(run)
    assert reason.startswith(expected)


def test_tracing_does_not_load_torchs_compiler():
    """That takes a second and 140 MB; torch has no public option to prevent it."""
    code = (
        "import sys, torch\n"
        "from quire.native.tracing import trace_calls\n"
        "from quire.worker.graphs.cpu_graph_memory import GraphAllocator\n"
        "from quire.worker.graphs.cpu_graph_memory import GraphMemory, TracingMode\n"
        "with trace_calls() as calls, TracingMode(GraphAllocator(GraphMemory()), calls):\n"
        "    torch.empty(3).mul_(2)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)


def test_a_chunk_is_filled_to_its_end_and_then_comes_the_next():
    memory = GraphMemory()
    blocks = GraphAllocator(memory)
    half = CHUNK_BYTES // 2
    kept = [blocks.allocate(half), blocks.allocate(half)]
    assert len(memory._chunks) == 1
    kept.append(blocks.allocate(1))
    assert len(memory._chunks) == 2
    assert len(blocks.addresses) == 3


def test_what_is_larger_than_a_chunk_has_one_of_its_own():
    memory = GraphMemory()
    block = GraphAllocator(memory).allocate(CHUNK_BYTES + 1)
    block[CHUNK_BYTES] = b"x"
    assert [len(chunk) >= CHUNK_BYTES + 1 for chunk in memory._chunks] == [True]
    memory.clear()
    assert block[CHUNK_BYTES] == b"\0"


def test_what_was_let_go_last_is_taken_again_first_and_by_its_size_alone():
    blocks = GraphAllocator(GraphMemory())
    one, other, small = blocks.allocate(256), blocks.allocate(256), blocks.allocate(64)
    addresses = [ctypes.addressof(block) for block in (one, other, small)]
    del one, other
    assert blocks.addresses == {addresses[2]}
    again = [blocks.allocate(250), blocks.allocate(193)]  # of as many lines of a cache
    assert [ctypes.addressof(block) for block in again] == [addresses[1], addresses[0]]
    assert ctypes.addressof(blocks.allocate(65)) not in addresses


def test_steps_share_their_memory_from_its_start():
    memory = GraphMemory()
    first, second = GraphAllocator(memory).allocate(100), GraphAllocator(memory).allocate(70)
    assert ctypes.addressof(first) == ctypes.addressof(second)
