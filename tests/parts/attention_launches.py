"""Launches of the paged attention kernels, to be compiled without a GPU.

A case is a shape and a layer. Each runs a decode step and a mixed step, so that all kernels of the
case are compiled as the backend launches them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from quire.interfaces.attention import AttentionLayerParams, AttentionShape, StepLayout
from quire.interfaces.kv_cache import KVLayer
from quire_attention_backends.triton.triton_attention import TritonBackend
from quire_kv_cache_specs.full_attention import FullAttentionSpec

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
HEAD_DIMS: tuple[tuple[int, ...], ...] = ((32, 64), (80, 96), (112, 160), (128,), (192, 256))
GROUPS = (1, 2, 4, 7, 8)
NUM_KV_HEADS, NUM_BLOCKS = 2, 8
EVERYTHING: dict[str, Any] = {
    "sliding_window": 40,
    "logit_soft_cap": 30.0,
    "sinks": True,
    "alibi": True,
}
TYPES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "float8_caches": {"kv_dtype": "float8_e4m3fn"},
    "int8_caches": {"kv_dtype": "int8"},
    "float32": {"dtype": "float32"},
}
Cases = list[dict[str, Any]]


def run_case(
    *,
    head_dim: int = 128,
    group: int = 4,
    dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    block_size: int = 16,
    batch_invariant: bool = False,
    sinks: bool = False,
    alibi: bool = False,
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
    slopes = torch.zeros(shape.num_heads) if alibi else None
    params = AttentionLayerParams(0.1, sinks=weights, alibi_slopes=slopes, **layer)
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


def plain() -> None:
    """Run the case of most models."""
    run_case()


def some() -> None:
    """Run a case of each parameter that changes the code."""
    run_case()
    run_case(dtype="float16", head_dim=64, **EVERYTHING)
    run_case(kv_dtype="float8_e4m3fn", block_size=64)
    run_case(alibi=True)
    run_case(kv_dtype="int8", **EVERYTHING)
    run_case(kv_dtype="int8", head_dim=256)
    run_case(head_dim=80, group=7)
    run_case(head_dim=96, kv_dtype="float8_e4m3fn")
    run_case(batch_invariant=True)
    run_case(head_dim=256, batch_invariant=True)
    run_case(head_dim=64, kv_dtype="int8", batch_invariant=True)
    run_case(dtype="float32", head_dim=64)


def _every_case() -> dict[str, Cases]:
    """Return all supported cases, in parts that compile within minutes each."""
    parts: dict[str, Cases] = {}
    for head_dims in HEAD_DIMS:
        ending = "_".join(map(str, head_dims))
        for label, types in TYPES.items():
            groups = GROUPS if 128 in head_dims else (1, 7)
            parts[f"{label}_{ending}"] = _grid(types, head_dim=head_dims, group=groups)
        parts[f"features_{ending}"] = _grid(EVERYTHING, head_dim=head_dims, block_size=(16, 128))
    quantized = ("float8_e4m3fn", "int8")
    parts["features_quantized"] = _grid({**EVERYTHING, "block_size": 128}, kv_dtype=quantized)
    fixed = {**EVERYTHING, "batch_invariant": True}
    some_dims: tuple[tuple[int, ...], ...] = ((64, 80), (128,), (256,))
    for head_dims, (label, types) in itertools.product(some_dims, TYPES.items()):
        if label != "float32":
            ending = "_".join(map(str, head_dims))
            parts[f"fixed_{label}_{ending}"] = _grid(
                {**types, **fixed}, head_dim=head_dims, group=(1, 8)
            )
    for head_dim in (64, 128, 256):
        same: dict[str, Any] = {"dtype": "float32", "head_dim": head_dim}
        narrower = ("bfloat16", *quantized)
        parts[f"float32_widened_{head_dim}"] = _grid(same, kv_dtype=narrower)
        same["batch_invariant"] = True
        kept = ("bfloat16", "int8", "float32")
        parts[f"fixed_float32_{head_dim}"] = _grid(same, kv_dtype=kept)
    return parts


def _grid(same: dict[str, Any], **each: tuple[Any, ...]) -> Cases:
    return [
        {**same, **dict(zip(each, values, strict=True))}
        for values in itertools.product(*each.values())
    ]


PARTS = _every_case()


def __getattr__(name: str) -> Callable[[], None]:
    """Return a part as the function that runs its cases."""
    if name not in PARTS:
        raise AttributeError(f"{__name__} has no part {name}; there are {', '.join(PARTS)}")

    def run() -> None:
        for case in PARTS[name]:
            run_case(**case)

    return run
