"""Host time of a step of `torch_sdpa`: planning, once a step, and each layer.

    python benchmarks/cpu/torch_sdpa_steps.py [--requests 1 16] [--seconds S] [--json FILE]

Planning is `prepare` and the additional work of the first layer. On a CPU the time
of a layer is arithmetic too, so the operators and Python calls are counted, too. The sizes are
those of a model of 5 million parameters. Every figure is the best of many repeats on one thread, in
that thread's CPU time, so that other processes disturb it little.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quire.cli.bench.tables import markdown_lines
from quire.interfaces.attention import AttentionLayerParams, AttentionShape, StepLayout
from quire.plugins.loading import load_plugins

NUM_REQUESTS = (1, 16, 64, 256)
BLOCK_SIZE = 16
MAX_CONTEXT = 2000
NUM_BLOCKS = 1 + max(NUM_REQUESTS) * (MAX_CONTEXT + 1 + BLOCK_SIZE) // BLOCK_SIZE
SHAPE = AttentionShape(
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    block_size=BLOCK_SIZE,
    max_num_seqs=max(NUM_REQUESTS),
    max_num_batched_tokens=8192,
    max_blocks_per_request=MAX_CONTEXT,
    dtype=torch.float32,
    kv_dtype="float32",
    device=torch.device("cpu"),
)
LAYER = AttentionLayerParams(SHAPE.head_dim**-0.5)
Lens = tuple[list[int], list[int]]  # new tokens, and computed and new ones together


def equal_decode(count: int) -> Lens:
    """Give every request one token and a context of 192."""
    return [1] * count, [192] * count


def mixed_decode(count: int) -> Lens:
    """Give every request one token and a context between 16 and 2,000."""
    rng = random.Random(0)
    return [1] * count, [rng.randint(16, MAX_CONTEXT) for _ in range(count)]


def mixed_prompts(count: int) -> Lens:
    """Give every fourth request a prompt of up to 100 tokens, and the others one token."""
    _, lens = mixed_decode(count)
    rng = random.Random(1)
    new = [1 if index % 4 else rng.randint(2, 100) for index in range(count)]
    return new, [max(num_new, length) for num_new, length in zip(new, lens, strict=True)]


STEPS: dict[str, Callable[[int], Lens]] = {
    "decode, equal lengths": equal_decode,
    "decode, 16 to 2000 tokens": mixed_decode,
    "prompts among decode": mixed_prompts,
}


class OperatorCount(TorchDispatchMode):
    """Counts operators that compute; views are free."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operator and run it."""
        del types
        self.num += not func.is_view
        return func(*args, **(kwargs or {}))


def measure(counts: tuple[int, ...] = NUM_REQUESTS, seconds: float = 0.5) -> list[dict[str, Any]]:
    """Measure every kind of step at every number of requests.

    Args:
        counts: Numbers of requests of a step.
        seconds: Time spent on each figure.
    """
    torch.set_num_threads(1)
    backend_class = load_plugins().registries.attention_backends.get("torch_sdpa")
    cache = torch.randn(NUM_BLOCKS, 2, SHAPE.num_kv_heads, BLOCK_SIZE, SHAPE.head_dim)
    found = []
    for name, lens_of in STEPS.items():
        for count in counts:
            lens = lens_of(count)
            figures = _figures(lambda: backend_class(SHAPE), cache, layout_of(*lens), seconds)
            found.append({"step": name, "requests": count, **figures})
    return found


def layout_of(query_lens: list[int], seq_lens: list[int]) -> StepLayout:
    """Return a step whose requests lie in blocks of random order."""
    generator = torch.Generator().manual_seed(0)
    width = -(-max(seq_lens) // BLOCK_SIZE)
    ids = 1 + torch.randperm(NUM_BLOCKS - 1, generator=generator)[: len(seq_lens) * width]
    table = ids.view(len(seq_lens), width).int()
    new, lens = torch.tensor(query_lens), torch.tensor(seq_lens)
    start = torch.nn.functional.pad(new.cumsum(0), (1, 0))
    rows = torch.repeat_interleave(torch.arange(len(new)), new)
    positions = torch.arange(len(rows)) + (lens - start[1:])[rows]
    blocks = table[rows, positions // BLOCK_SIZE].long()
    return StepLayout(
        query_start=start.int(),
        seq_lens=lens.int(),
        block_table=table,
        slot_mapping=blocks * BLOCK_SIZE + positions % BLOCK_SIZE,
        num_tokens=len(rows),
        max_query_len=max(query_lens),
        query_lens_host=query_lens,
        seq_lens_host=seq_lens,
    )


def _figures(
    build: Callable[[], Any], cache: Tensor, layout: StepLayout, seconds: float
) -> dict[str, Any]:
    num_tokens = len(layout.slot_mapping)
    q = torch.randn(num_tokens, SHAPE.num_heads, SHAPE.head_dim)
    k, v = torch.randn(2, num_tokens, SHAPE.num_kv_heads, SHAPE.head_dim)
    backend = build()

    def first_layer() -> Any:
        backend.forget_context()
        metadata = backend.prepare(layout)
        backend.forward(q, k, v, cache, metadata, LAYER)
        return metadata

    def next_layer(metadata: Any) -> None:
        backend.forward(q, k, v, cache, metadata, LAYER)

    first, later = _best_us(first_layer, next_layer, seconds)
    metadata = first_layer()
    layer_work = _counted(lambda: next_layer(metadata))
    step_work = _counted(first_layer)
    return {
        "plan_us": round(first - later, 1),
        "layer_us": round(later, 1),
        "plan_operators": step_work[0] - layer_work[0],
        "layer_operators": layer_work[0],
        "plan_calls": step_work[1] - layer_work[1],
        "layer_calls": layer_work[1],
    }


def _best_us(
    first_layer: Callable[[], Any], next_layer: Callable[[Any], None], seconds: float
) -> tuple[float, float]:
    firsts, others = [], []
    for _ in _for_seconds(seconds):
        start = time.thread_time()
        metadata = first_layer()
        middle = time.thread_time()
        next_layer(metadata)
        firsts.append(middle - start)
        others.append(time.thread_time() - middle)
    return 1e6 * min(firsts), 1e6 * min(others)


def _for_seconds(seconds: float) -> Iterator[int]:
    end, index = time.perf_counter() + seconds, 0
    while index < 3 or time.perf_counter() < end:
        yield index
        index += 1


def _counted(run: Callable[[], object]) -> tuple[int, int]:
    """Return the number of operators that a run computes, and of Python's calls."""
    with OperatorCount() as operators:
        run()
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return operators.num, calls


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    return "\n".join(markdown_lines(list(rows[0]), ([*map(str, row.values())] for row in rows)))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--requests", type=int, nargs="+", default=NUM_REQUESTS)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    wanted = parser.parse_args()
    rows = measure(tuple(wanted.requests), wanted.seconds)
    print(table(rows))
    if wanted.json:
        wanted.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
