"""Launches of the paged attention kernels, to be compiled for a GPU that is not there.

A case is a shape and a layer. Each runs a decode step and a mixed step, so that all kernels of the
case are compiled as the backend would launch them.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from quire.interfaces.attention import AttentionLayerParams, AttentionShape, StepLayout
from quire.interfaces.kv_cache import KVLayer
from quire_attention_backends.triton_attention import TritonBackend
from quire_kv_cache_specs.full_attention import FullAttentionSpec

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 256)
GROUPS = (1, 2, 4, 7, 8)
NUM_KV_HEADS, NUM_BLOCKS = 2, 8
ALIKE = (("bfloat16", "bfloat16"), ("float32", "float32"))
QUANTIZED = (("bfloat16", "float8_e4m3fn"), ("bfloat16", "int8"))
PARTS = (
    "bfloat16",
    "float16",
    "float32",
    "float8_caches",
    "int8_caches",
    "batch_invariant",
    "features",
)
EVERYTHING = {"sliding_window": 40, "logit_soft_cap": 30.0, "sinks": True}


def run_case(
    *,
    head_dim: int = 128,
    group: int = 4,
    dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    block_size: int = 16,
    batch_invariant: bool = False,
    sinks: bool = False,
    **layer: Any,
) -> None:
    """Run both kinds of step of one shape and layer."""
    shape = AttentionShape(
        num_heads=NUM_KV_HEADS * group,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=head_dim,
        block_size=block_size,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_blocks_per_request=4,
        dtype=DTYPES[dtype],
        kv_dtype=kv_dtype or dtype,
        device=torch.device("cpu"),
        batch_invariant=batch_invariant,
    )
    weights = torch.zeros(shape.num_heads) if sinks else None
    params = AttentionLayerParams(0.1, sinks=weights, **layer)
    backend = TritonBackend(shape)
    key_values = KVLayer("compiled", "full_attention", NUM_KV_HEADS, head_dim)
    spec = FullAttentionSpec(key_values, block_size, shape.kv_dtype)
    raw = torch.zeros(NUM_BLOCKS * spec.page_bytes, dtype=torch.uint8)
    cache = TritonBackend.kv_view(raw, spec, NUM_BLOCKS)
    for query_lens in ([1, 1], [40, 1]):
        step = _step(query_lens)
        qkv = torch.zeros(sum(query_lens), shape.num_heads + 2 * NUM_KV_HEADS, head_dim)
        q, k, v = qkv.to(shape.dtype).split([shape.num_heads, NUM_KV_HEADS, NUM_KV_HEADS], 1)
        backend.forward(q, k, v, cache, backend.prepare(step), params)


def _step(query_lens: list[int]) -> StepLayout:
    starts = [0, *itertools.accumulate(query_lens)]
    num_tokens = starts[-1]
    return StepLayout(
        query_start=torch.tensor(starts, dtype=torch.int32),
        seq_lens=torch.tensor(query_lens, dtype=torch.int32),
        block_table=torch.zeros(len(query_lens), 4, dtype=torch.int32),
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64),
        num_tokens=num_tokens,
        max_query_len=max(query_lens),
        query_lens_host=[],
        seq_lens_host=[],
    )


def some() -> None:
    """Run one case of each thing that changes the code."""
    run_case()
    run_case(kv_dtype="float8_e4m3fn", block_size=64, head_dim=64)
    run_case(kv_dtype="int8", **EVERYTHING)
    run_case(head_dim=80, group=7)
    run_case(head_dim=256, batch_invariant=True)
    run_case(dtype="float32")


def bfloat16() -> None:
    _run_all(dtype="bfloat16")


def float16() -> None:
    _run_all(dtype="float16")


def float32() -> None:
    _run_all(dtype="float32")


def float8_caches() -> None:
    _run_all(kv_dtype="float8_e4m3fn")


def int8_caches() -> None:
    _run_all(kv_dtype="int8")


def batch_invariant() -> None:
    for dtype, kv_dtype in ALIKE + QUANTIZED:
        for head_dim in (64, 80, 128, 256):
            for group in (1, 4, 8):
                run_case(
                    dtype=dtype,
                    kv_dtype=kv_dtype,
                    head_dim=head_dim,
                    group=group,
                    batch_invariant=True,
                    **EVERYTHING,
                )


def features() -> None:
    for head_dim, block_size in itertools.product(HEAD_DIMS, (16, 128)):
        run_case(head_dim=head_dim, block_size=block_size, **EVERYTHING)
    for kv_dtype in ("float8_e4m3fn", "int8"):
        run_case(head_dim=128, kv_dtype=kv_dtype, block_size=128, **EVERYTHING)


def widened() -> None:
    """Run float32 queries with narrower caches."""
    for head_dim, kv_dtype in itertools.product((64, 128, 256), ("bfloat16", "float8_e4m3fn")):
        run_case(dtype="float32", kv_dtype=kv_dtype, head_dim=head_dim)
        run_case(dtype="float32", kv_dtype=kv_dtype, head_dim=head_dim, batch_invariant=True)


def _run_all(**types: str) -> None:
    for head_dim, group in itertools.product(HEAD_DIMS, GROUPS):
        if head_dim == 128 or group in (1, 7):
            run_case(head_dim=head_dim, group=group, **types)
