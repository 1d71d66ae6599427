"""Attention compared with the limits of memory and arithmetic.

    python benchmarks/cpu/attention_rates.py [--threads N] [--seconds S] [--json FILE]

Decode is measured by the bytes of K and V that it reads, prefill by the multiplications that a
causal prompt needs. Those of a bfloat16 cache are also measured with pairs of bfloat16, as with
`--dtype bfloat16`, where the processor has them. A decode step goes through as many layers as have
256 MiB together, more than most caches, in memory as an engine has it. Every figure is the best of
many runs; the machine's rates are measured just before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from machine_rates import MachineRates, best_time, measure_machine
from rate_tables import attention_table
from torch import Tensor

from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    StepLayout,
)
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.plugins.loading import load_plugins
from quire.worker.memory.device_memory import zeroed_bytes

BACKENDS = ("cpu", "torch_sdpa")
HEADS = {"0.6B": (16, 8, 128), "8B": (32, 8, 128)}  # H, K and D of Qwen3
KV_DTYPES = ("float32", "bfloat16", "int8")
DECODES = (  # requests, and tokens of each
    *((batch, context) for batch in (1, 8) for context in (512, 2048, 8192)),
    (16, 256),
    (64, 256),
)
PREFILLS = ((512, 512), (2048, 2048), (512, 4096), (512, 16384))  # new tokens, and all of them
PAIRS = "bfloat16"  # the compute dtype that multiplies pairs
BLOCK_SIZE = 16
CYCLE_BYTES = 2**28  # of all layers of a run
SMALL_BYTE = 0x3C  # four of them are 0.0115 in float32, two in bfloat16; as int8 it is 60
REGISTRIES = load_plugins().registries


@dataclass(frozen=True, slots=True)
class Case:
    """One step of equal requests, and the cache that they read."""

    model: str
    kv_dtype: str
    batch: int
    num_new: int
    context: int  # new tokens included
    product_dtype: str = "float32"

    @property
    def spec(self) -> KVCacheSpec:
        """Spec of the KV cache, which determines the page size."""
        _, num_kv_heads, head_dim = HEADS[self.model]
        layer = KVLayer("layer", "full_attention", num_kv_heads, head_dim)
        made: KVCacheSpec = REGISTRIES.kv_cache_specs.get("full_attention")(
            layer, BLOCK_SIZE, self.kv_dtype
        )
        return made

    @property
    def blocks_per_request(self) -> int:
        """Number of blocks of a context."""
        return -(-self.context // BLOCK_SIZE)

    @property
    def layer_bytes(self) -> int:
        """Number of bytes of K and V that a layer reads."""
        return self.batch * self.context * self.spec.page_bytes // BLOCK_SIZE

    @property
    def flops(self) -> int:
        """Number of multiplications and additions of a causal layer."""
        num_heads, _, head_dim = HEADS[self.model]
        seen = sum(range(self.context - self.num_new + 1, self.context + 1))
        return 4 * num_heads * head_dim * seen * self.batch

    def shape(self) -> AttentionShape:
        """Return the shape that a backend is built for."""
        num_heads, num_kv_heads, head_dim = HEADS[self.model]
        return AttentionShape(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_size=BLOCK_SIZE,
            max_num_seqs=self.batch,
            max_num_batched_tokens=self.batch * self.num_new,
            max_blocks_per_request=self.blocks_per_request,
            dtype=torch.float32,
            kv_dtype=self.kv_dtype,
            device=torch.device("cpu"),
            product_dtype=self.product_dtype,
        )

    def layout(self) -> StepLayout:
        """Return the step; blocks are in random order."""
        generator = torch.Generator().manual_seed(0)
        blocks = 1 + torch.randperm(self.batch * self.blocks_per_request, generator=generator)
        table = blocks.view(self.batch, -1).int()
        positions = torch.arange(self.context - self.num_new, self.context)
        slots = table[:, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE
        return StepLayout(
            query_start=torch.arange(self.batch + 1, dtype=torch.int32) * self.num_new,
            seq_lens=torch.full((self.batch,), self.context, dtype=torch.int32),
            block_table=table,
            slot_mapping=slots.flatten(),
            num_tokens=self.batch * self.num_new,
            max_query_len=self.num_new,
            query_lens_host=[self.num_new] * self.batch,
            seq_lens_host=[self.context] * self.batch,
        )


def decode_cases() -> Iterator[Case]:
    """Yield every model, type, batch and context."""
    for model in HEADS:
        for kv_dtype in KV_DTYPES:
            for batch, context in DECODES:
                yield Case(model, kv_dtype, batch, 1, context)


def prefill_cases() -> Iterator[Case]:
    """Yield whole prompts of one request, and last chunks of longer ones."""
    for model in HEADS:
        for kv_dtype in KV_DTYPES:
            for num_new, context in PREFILLS:
                yield Case(model, kv_dtype, 1, num_new, context)


def measure(
    threads: int | None = None, seconds: float = 0.3, *, is_quick: bool = False
) -> list[dict[str, Any]]:
    """Measure every case with every backend.

    Args:
        threads: Number of threads; by default, as many as torch uses.
        seconds: Time spent on each figure.
        is_quick: True for one case only, to check that it works.

    Raises:
        NativeUnavailableError: There is no compiler.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    found = []
    cases = [*decode_cases(), *prefill_cases()]
    for case in cases[:1] if is_quick else cases:
        rates = measure_machine(threads, seconds / 2)
        found += [_figures(case, name, rates, seconds) for name in BACKENDS]
        if case.kv_dtype == PAIRS and rates.pair_flops:
            found.append(_figures(replace(case, product_dtype=PAIRS), "cpu", rates, seconds))
    return found


def _figures(case: Case, name: str, rates: MachineRates, seconds: float) -> dict[str, Any]:
    is_decode = case.num_new == 1
    num_layers = max(1, CYCLE_BYTES // case.layer_bytes) if is_decode else 1
    best = best_time(_step(case, name, num_layers), seconds, 3) / num_layers
    found: dict[str, Any] = {
        "backend": f"{name}, pairs" if case.product_dtype == PAIRS else name,
        "model": case.model,
        "kv": case.kv_dtype,
        "batch": case.batch,
        "new": case.num_new,
        "context": case.context,
        "threads": rates.threads,
        "layer_ms": round(1e3 * best, 4),
    }
    if is_decode:
        speed, limit, unit = case.layer_bytes / best, rates.bytes_per_s, "GB/s"
    else:
        peak = rates.pair_flops if case.product_dtype == PAIRS else rates.flops
        speed, limit, unit = case.flops / best, peak, "GFLOP/s"
    return {
        **found,
        "rate": round(speed / 1e9, 1),
        "unit": unit,
        "limit": round(limit / 1e9, 1),
        "of_limit": round(speed / limit, 3),
    }


def _step(case: Case, name: str, num_layers: int) -> Callable[[], object]:
    """Return a function that runs all layers of a step once."""
    backend_class: type[AttentionBackend] = REGISTRIES.attention_backends.get(name)
    backend, layout = backend_class(case.shape()), case.layout()
    num_blocks = 1 + case.batch * case.blocks_per_request
    caches = [
        backend_class.kv_view(_filled(num_blocks * case.spec.page_bytes), case.spec, num_blocks)
        for _ in range(num_layers)
    ]
    num_heads, num_kv_heads, head_dim = HEADS[case.model]
    q, k, v = torch.randn(layout.num_tokens, num_heads + 2 * num_kv_heads, head_dim).split(
        (num_heads, num_kv_heads, num_kv_heads), 1
    )
    params = [AttentionLayerParams(head_dim**-0.5) for _ in caches]

    def run() -> None:
        metadata = backend.prepare(layout)
        for cache, layer in zip(caches, params, strict=True):
            backend.forward(q, k, v, cache, metadata, layer)

    return run


def _filled(num_bytes: int) -> Tensor:
    return zeroed_bytes(num_bytes, torch.device("cpu")).fill_(SMALL_BYTE)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, help="by default, as many as torch uses")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    parser.add_argument("--quick", action="store_true", help="one case, to see that it works")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    wanted = parser.parse_args()
    rows = measure(wanted.threads, wanted.seconds, is_quick=wanted.quick)
    print(attention_table(rows))
    if wanted.json:
        wanted.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
