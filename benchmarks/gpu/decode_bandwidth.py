"""Fraction of the copy bandwidth that a decode step's attention reaches, by batch and context.

Several layers run one after the other, each with its own part of a pool that is larger than the
device's caches, as in a model; the smallest batches still fit there, and their rows say so. The
bytes that count are those of the visible K and V, read once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from timing import device_s, eager_s
from torch import Tensor

from quire.config import PluginSettings
from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    StepLayout,
)
from quire.interfaces.kv_cache import KVLayer
from quire.plugins.loading import Registries, load_plugins

BATCHES = (1, 8, 17, 32, 128, 256)
CONTEXTS = (128, 1024, 4096, 16_384)
BLOCK_SIZE = 16
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128  # of Llama-3.1-8B
MIN_READ_BYTES = 2**29  # by one replay: several times a device's last cache
MAX_LAYERS = 64  # as long as a replay of the smallest batches may take


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that are measured; small ones for a dry run."""

    batches: Sequence[int] = BATCHES
    contexts: Sequence[int] = CONTEXTS
    min_read_bytes: int = MIN_READ_BYTES
    dtype: torch.dtype = torch.bfloat16


DRY = Sizes(batches=(1, 3), contexts=(40,), min_read_bytes=1, dtype=torch.float32)


def measure_bandwidth(
    names: Sequence[str], device: torch.device, copy_bytes_s: float | None, sizes: Sizes
) -> Iterator[dict[str, Any]]:
    """Measure each backend in each situation, the most important first, in case time runs out.

    If a backend fails, its row has the reason.
    """
    registries = load_plugins(PluginSettings()).registries
    pool = Pool(registries, device, sizes)
    for batch, context in sorted(product(sizes.batches, sizes.contexts), key=_by_weight):
        for is_even in (True, False) if batch > 1 else (True,):
            lengths = random_lengths(batch, context, is_even=is_even)
            for name in names:
                row = {"batch": batch, "context": context, "even": is_even, "backend": name}
                yield row | _measured(name, pool, lengths, copy_bytes_s)


def _by_weight(cell: tuple[int, int]) -> tuple[bool, int, int]:
    batch, context = cell
    return (batch < 17, abs(context - 1024), batch)


def random_lengths(batch: int, context: int, *, is_even: bool) -> list[int]:
    """Return contexts of the same sum: all alike, or from an eighth to fifteen eighths."""
    if is_even or batch == 1:
        return [context] * batch
    rng = random.Random(batch * context)
    uneven = [rng.randint(context // 8, 15 * context // 8) for _ in range(batch)]
    scale = context * batch / sum(uneven)
    return [max(1, round(length * scale)) for length in uneven]


class Pool:
    """One allocation of random KV that every situation takes its layers from."""

    def __init__(self, registries: Registries, device: torch.device, sizes: Sizes) -> None:
        self.registries = registries
        self.device = device
        self.sizes = sizes
        spec_class = registries.kv_cache_specs.get("full_attention")
        layer = KVLayer("bench", "full_attention", NUM_KV_HEADS, HEAD_DIM)
        self.spec = spec_class(layer, BLOCK_SIZE, str(sizes.dtype).removeprefix("torch."))
        most = max(sizes.batches) * max(sizes.contexts) * 2 // BLOCK_SIZE + 1
        self.num_blocks = max(most, sizes.min_read_bytes // self.spec.page_bytes + 1)
        self.raw = torch.empty(
            self.num_blocks * self.spec.page_bytes, dtype=torch.uint8, device=device
        )
        elements = self.raw.view(sizes.dtype)
        for part in elements.split(2**28):
            part.normal_()

    def layout(self, lengths: Sequence[int]) -> StepLayout:
        """Give each request blocks from all over a layer's part of the pool."""
        counts = [-(-length // BLOCK_SIZE) for length in lengths]
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(self.blocks_a_layer(lengths) - 1, generator=generator) + 1
        table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        first = 0
        for row, count in enumerate(counts):
            table[row, :count] = order[first : first + count]
            first += count
        last = torch.tensor(lengths) - 1
        blocks = table[torch.arange(len(lengths)), last // BLOCK_SIZE].long()
        starts = torch.arange(len(lengths) + 1, dtype=torch.int32)
        return StepLayout(
            query_start=starts.to(self.device),
            seq_lens=torch.tensor(lengths, dtype=torch.int32, device=self.device),
            block_table=table.to(self.device),
            slot_mapping=(blocks * BLOCK_SIZE + last % BLOCK_SIZE).to(self.device),
            num_tokens=len(lengths),
            max_query_len=1,
            query_lens_host=[1] * len(lengths),
            seq_lens_host=list(lengths),
        )

    def blocks_a_layer(self, lengths: Sequence[int]) -> int:
        """Return the size of a layer's part: the null block, and what the requests hold."""
        return 1 + sum(-(-length // BLOCK_SIZE) for length in lengths)

    def caches(self, backend_class: type[AttentionBackend], lengths: Sequence[int]) -> list[Tensor]:
        """Return a backend's views of as many layers as keep caches from holding what is read."""
        num_blocks = self.blocks_a_layer(lengths)
        num_bytes = num_blocks * self.spec.page_bytes
        wanted = min(MAX_LAYERS, -(-self.sizes.min_read_bytes // num_bytes))
        count = max(1, min(wanted, self.raw.numel() // num_bytes))
        parts = self.raw[: count * num_bytes].view(count, num_bytes)
        return [backend_class.kv_view(part, self.spec, num_blocks) for part in parts]

    def shape(self, lengths: Sequence[int], width: int) -> AttentionShape:
        """Return the sizes that a backend is built for."""
        return AttentionShape(
            num_heads=NUM_HEADS,
            num_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            block_size=BLOCK_SIZE,
            max_num_seqs=len(lengths),
            max_num_batched_tokens=max(len(lengths), 16),
            max_blocks_per_request=width,
            dtype=self.sizes.dtype,
            kv_dtype=self.spec.kv_dtype,
            device=self.device,
        )


def _measured(name: str, pool: Pool, lengths: Sequence[int], copy_bytes_s: float) -> dict[str, Any]:
    entry = pool.registries.attention_backends.entry(name)
    layout = pool.layout(lengths)
    try:
        backend_class = pool.registries.attention_backends.get(name)
        backend = backend_class(pool.shape(lengths, layout.block_table.shape[1]))
        caches = pool.caches(backend_class, lengths)
        run = _step(backend, caches, layout, pool)
        can_capture = entry.capabilities.graphs != "none"
        seconds = (device_s if can_capture else eager_s)(run, pool.device) / len(caches)
    except Exception as error:  # noqa: BLE001 (the others are still worth measuring)
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    num_bytes = sum(lengths) * pool.spec.page_bytes / BLOCK_SIZE
    rate = num_bytes / seconds
    return {
        "us": seconds * 1e6,
        "bytes_s": rate,
        "of_copy": None if copy_bytes_s is None else rate / copy_bytes_s,
        "is_cached": num_bytes * len(caches) < pool.sizes.min_read_bytes / 2,
    }


def _step(
    backend: AttentionBackend, caches: Sequence[Tensor], layout: StepLayout, pool: Pool
) -> Callable[[], None]:
    """Return the attention of a decode step: prepared once, and then layer after layer."""
    options: dict[str, Any] = {"dtype": pool.sizes.dtype, "device": pool.device}
    q = torch.randn(layout.num_tokens, NUM_HEADS, HEAD_DIM, **options)
    k, v = (torch.randn(layout.num_tokens, NUM_KV_HEADS, HEAD_DIM, **options) for _ in range(2))
    layer = AttentionLayerParams(HEAD_DIM**-0.5)

    def run() -> None:
        metadata = backend.prepare(layout)
        for cache in caches:
            backend.forward(q, k, v, cache, metadata, layer)

    return run
