"""A scene for attention backends: requests, their true K and V, and a pool of poisoned blocks.

The scene is small and slow on purpose. It knows the whole context of every request, so the answer
of any step can be computed in float64 by the definition of attention; the backend sees only what
the engine would show it. Blocks are given out in random order. Every byte that no step has written
holds NaN, so does what padding writes, and so does every block that no query sees any more: whoever
reads there shows it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from quire.config import PluginSettings
from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    StepLayout,
)
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.plugins import load_plugins

POOL_TOKENS = 2048
MAX_TOKENS = 640  # of one step
SCALE = 0.3

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneSizes:
    """What a scene is built for."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    dtype: str = "float32"
    kv_dtype: str = "float32"
    device: str = "cpu"
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    batch_invariant: bool = False
    num_padding_rows: int = 0  # between pages, each of D numbers

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return 48 + POOL_TOKENS // self.block_size

    @property
    def params(self) -> AttentionLayerParams:
        """What a layer of this scene gives to `forward`."""
        return AttentionLayerParams(SCALE, self.window, self.soft_cap, attention_chunk=self.chunk)


@dataclass(slots=True)
class SceneRequest:
    """One request: what its tokens will ask and hold, and where they lie."""

    q: Tensor  # [L, H, D]
    k: Tensor  # [L, K, D]
    v: Tensor  # [L, K, D]
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Padding:
    """How many rows of padding a step carries behind the real ones."""

    num_requests: int = 0
    num_tokens: int = 0


class AttentionScene:
    """Requests that share a pool, and the backend under test.

    Attributes:
        requests: In the order in which they came.
        raw: uint8, `[B, bytes from page to page]`; the bytes behind the backend's view.
        page_bytes: How many of them, from the first, are the page.
    """

    def __init__(
        self, backend_class: type[AttentionBackend], sizes: SceneSizes, *, seed: int = 0
    ) -> None:
        self.sizes = sizes
        self.requests: list[SceneRequest] = []
        self._random = torch.Generator().manual_seed(seed)
        spec = full_attention_spec(sizes)
        device = torch.device(sizes.device)
        self.page_bytes = spec.page_bytes
        distance = spec.page_bytes + sizes.num_padding_rows * spec.row_bytes
        self.raw = torch.zeros(sizes.num_blocks, distance, dtype=torch.uint8, device=device)
        self.raw.view(DTYPES[sizes.kv_dtype]).fill_(math.nan)
        pages = self.raw[:, : spec.page_bytes] if sizes.num_padding_rows else self.raw.view(-1)
        self.kv_cache = backend_class.kv_view(pages, spec, sizes.num_blocks)
        order = torch.randperm(sizes.num_blocks - 1, generator=self._random) + 1
        self._free = order.tolist()
        self.backend = backend_class(
            AttentionShape(
                num_heads=sizes.num_heads,
                num_kv_heads=sizes.num_kv_heads,
                head_dim=sizes.head_dim,
                block_size=sizes.block_size,
                max_num_seqs=32,
                max_num_batched_tokens=MAX_TOKENS,
                max_blocks_per_request=sizes.num_blocks,
                dtype=DTYPES[sizes.dtype],
                device=device,
                page_bytes=distance if sizes.num_padding_rows else None,
                batch_invariant=sizes.batch_invariant,
            )
        )

    def add(self, num_tokens: int) -> int:
        """Bring in a request that will have so many tokens; return its number."""
        sizes = self.sizes
        q = self._draw(num_tokens, sizes.num_heads)
        k, v = (self._draw(num_tokens, sizes.num_kv_heads) for _ in range(2))
        self.requests.append(SceneRequest(q, k, v))
        return len(self.requests) - 1

    def add_with_prefix_of(self, other: int, num_shared_blocks: int, num_tokens: int) -> int:
        """Bring in a request whose first blocks are those of another, computed already."""
        number = self.add(num_tokens)
        shared = num_shared_blocks * self.sizes.block_size
        donor, request = self.requests[other], self.requests[number]
        request.k[:shared], request.v[:shared] = donor.k[:shared], donor.v[:shared]
        request.block_ids = donor.block_ids[:num_shared_blocks]
        request.num_computed = shared
        return number

    def end(self, number: int) -> None:
        """Give a request's blocks back, as they are; the next request takes them at once."""
        request = self.requests[number]
        others = [r.block_ids for r in self.requests if r is not request]
        shared = {block_id for block_ids in others for block_id in block_ids}
        self._free += [block_id for block_id in request.block_ids if block_id not in shared | {0}]
        request.block_ids = []

    def step(
        self, plan: Sequence[tuple[int, int]], padding: Padding | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Run one step of the backend.

        Args:
            plan: Request and number of its next tokens, in the order of the batch.
            padding: Rows to add behind the step, as an engine with fixed batch sizes does.

        Returns:
            For each request of the plan, what the backend said and what is true, `[n, H, D]`.
        """
        answers = self.answers(plan, padding)
        shares = zip(answers, plan, strict=True)
        return [(answer, self.truth(number, num_new)) for answer, (number, num_new) in shares]

    def answers(
        self, plan: Sequence[tuple[int, int]], padding: Padding | None = None
    ) -> list[Tensor]:
        """Run one step of the backend, and return for each request what it said, `[n, H, D]`."""
        padding = padding or Padding()
        metadata = self.backend.prepare(self.layout(plan, padding))
        q, k, v = self.inputs(plan, padding.num_tokens)
        out = self.backend.forward(q, k, v, self.kv_cache, metadata, self.sizes.params).cpu()
        for number, num_new in plan:
            self.requests[number].num_computed += num_new
        ends = list(itertools.accumulate(num_new for _, num_new in plan))
        return [out[end - num_new : end] for end, (_, num_new) in zip(ends, plan, strict=True)]

    def truth(self, number: int, num_last: int) -> Tensor:
        """Return the float64 answer for the last computed tokens of a request, `[n, H, D]`."""
        request, end = self.requests[number], self.requests[number].num_computed
        stored = DTYPES[self.sizes.kv_dtype]
        return reference_attention(
            request.q[end - num_last : end].double(),
            request.k[:end].to(stored).double(),
            request.v[:end].to(stored).double(),
            self.sizes.params,
        )

    def give_up_unseen(self, number: int, *, is_taken: bool = False) -> None:
        """Give up the blocks that the next tokens of a request do not see, as its spec does.

        Args:
            number: The request.
            is_taken: Whether the table goes on to name them, now that others own them; else it
                names the null block. Both hold NaN.
        """
        request = self.requests[number]
        num_gone = first_seen(request.num_computed, self.sizes.params) // self.sizes.block_size
        for index in range(num_gone):
            self.raw[request.block_ids[index]].view(DTYPES[self.sizes.kv_dtype]).fill_(math.nan)
            request.block_ids[index] *= is_taken

    def inputs(
        self, plan: Sequence[tuple[int, int]], num_padding: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v of a step, `[T, heads, D]`, with NaN as padding."""

        def rows_of(sources: Sequence[Tensor]) -> Tensor:
            rows = [
                source[request.num_computed : request.num_computed + num_new]
                for source, (request, num_new) in zip(sources, shares, strict=True)
            ]
            junk = torch.full_like(rows[0][:1], math.nan).expand(num_padding, -1, -1)
            return torch.cat([*rows, junk]).to(self.sizes.device)

        shares = [(self.requests[number], num_new) for number, num_new in plan]
        requests = [request for request, _ in shares]
        return (
            rows_of([request.q for request in requests]),
            rows_of([request.k for request in requests]),
            rows_of([request.v for request in requests]),
        )

    def layout(self, plan: Sequence[tuple[int, int]], padding: Padding) -> StepLayout:
        """Give out the blocks that a step needs, and say where its tokens go."""
        for number, num_new in plan:
            self._give_blocks(self.requests[number], num_new)
        query_lens = [num_new for _, num_new in plan]
        seq_lens = [self.requests[number].num_computed + num_new for number, num_new in plan]
        slots = [slot for number, num_new in plan for slot in self._slots(number, num_new)]
        starts = [sum(query_lens[:index]) for index in range(len(plan) + 1)]
        tables = [self.requests[number].block_ids for number, _ in plan]
        width = max(map(len, tables))
        rows = [table + [0] * (width - len(table)) for table in tables]
        empty = padding.num_requests
        device = self.sizes.device
        return StepLayout(
            query_start=torch.tensor(starts + [0] * empty, dtype=torch.int32, device=device),
            seq_lens=torch.tensor(seq_lens + [0] * empty, dtype=torch.int32, device=device),
            block_table=torch.tensor(rows + [[0] * width] * empty, dtype=torch.int32).to(device),
            slot_mapping=torch.tensor(slots + [0] * padding.num_tokens, device=device),
            num_tokens=len(slots),
            query_lens_host=query_lens,
            seq_lens_host=seq_lens,
        )

    def _draw(self, num_tokens: int, num_heads: int) -> Tensor:
        shape = (num_tokens, num_heads, self.sizes.head_dim)
        return torch.randn(shape, generator=self._random).to(DTYPES[self.sizes.dtype])

    def _give_blocks(self, request: SceneRequest, num_new: int) -> None:
        wanted = -(-(request.num_computed + num_new) // self.sizes.block_size)
        while len(request.block_ids) < wanted:
            request.block_ids.append(self._free.pop())

    def _slots(self, number: int, num_new: int) -> list[int]:
        request, size = self.requests[number], self.sizes.block_size
        positions = range(request.num_computed, request.num_computed + num_new)
        return [request.block_ids[p // size] * size + p % size for p in positions]


def reference_attention(
    q: Tensor,  # [n, H, D], the last n tokens of the context
    k: Tensor,  # [L, K, D]
    v: Tensor,  # [L, K, D]
    layer: AttentionLayerParams,
) -> Tensor:  # [n, H, D]
    """Return attention by its definition, one head and one query after the other."""
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for row in range(len(q)):
        end = len(k) - len(q) + row + 1
        start = first_seen(end - 1, layer)
        for head in range(q.shape[1]):
            keys, values = k[start:end, head // group], v[start:end, head // group]
            scores = keys @ q[row, head] * layer.scale
            if layer.logit_soft_cap is not None:
                scores = layer.logit_soft_cap * torch.tanh(scores / layer.logit_soft_cap)
            out[row, head] = scores.softmax(0) @ values
    return out


def first_seen(position: int, layer: AttentionLayerParams) -> int:
    """Return the first position that a query at a position sees."""
    first = 0 if layer.sliding_window is None else max(0, position + 1 - layer.sliding_window)
    chunk = layer.attention_chunk
    return first if chunk is None else max(first, position // chunk * chunk)


def full_attention_spec(sizes: SceneSizes) -> KVCacheSpec:
    """Return the spec that gives a scene's pages their size."""
    layer = KVLayer("scene", "full_attention", sizes.num_kv_heads, sizes.head_dim)
    return _full_attention()(layer, sizes.block_size, sizes.kv_dtype)


@cache
def _full_attention() -> type[KVCacheSpec]:
    own_only = PluginSettings(disable_plugin_autoload=True)
    return load_plugins(own_only).registries.kv_cache_specs.get("full_attention")
