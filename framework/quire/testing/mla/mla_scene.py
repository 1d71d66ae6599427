"""Test scene for latent attention: requests, their exact rows, and a pool of poisoned blocks.

Like `attention_scene`, it is small and slow, allocates blocks in random order and fills every byte
that no step has written with NaN.
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
from quire.interfaces.attention import StepLayout
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.interfaces.mla import MLABackend, MLAShape
from quire.plugins.loading import load_plugins
from quire.testing.attention.attention_scene import assert_like
from quire.testing.attention.attention_sizes import Padding

POOL_TOKENS = 1024
MAX_TOKENS = 640  # in one step
SCALE = 0.2

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

StepRows = tuple[Tensor, Tensor, Tensor, Tensor]  # q_latent, q_rope, latent, k_rope of some tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MLASizes:
    """Sizes of a scene."""

    num_heads: int = 4
    latent_dim: int = 64
    rope_dim: int = 16
    block_size: int = 16
    dtype: str = "float32"
    kv_dtype: str = "float32"
    device: str = "cpu"
    num_padding_rows: int = 0  # between pages, each of C + P elements

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the pool."""
        return 48 + POOL_TOKENS // self.block_size

    @property
    def spec(self) -> KVCacheSpec:
        """KV-cache spec that defines the page size."""
        row = self.latent_dim + self.rope_dim
        layer = KVLayer("scene", "mla_attention", 1, row, (("latent_dim", self.latent_dim),))
        return _mla_attention()(layer, self.block_size, self.kv_dtype)


@dataclass(slots=True)
class MLARequest:
    """One request: queries, latents and rotary keys of all its tokens, and its blocks."""

    q_latent: Tensor  # [L, H, C]
    q_rope: Tensor  # [L, H, P]
    latent: Tensor  # [L, C]
    k_rope: Tensor  # [L, P]
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)

    def rows(self, start: int, stop: int) -> StepRows:
        """Return the rows that a layer passes to a backend for tokens `start` to `stop`."""
        here = slice(start, stop)
        return self.q_latent[here], self.q_rope[here], self.latent[here], self.k_rope[here]


class MLAScene:
    """Requests that share a pool, and the backend under test.

    Attributes:
        requests: Requests in the order in which they were added.
        raw: Memory behind the backend's view, uint8 `[B, bytes from page to page]`.
        page_bytes: Number of bytes of a page, from the first of its row of `raw`.
    """

    def __init__(self, backend_class: type[MLABackend], sizes: MLASizes, *, seed: int = 0) -> None:
        self.sizes = sizes
        self.requests: list[MLARequest] = []
        self._random = torch.Generator().manual_seed(seed)
        spec, device = sizes.spec, torch.device(sizes.device)
        self.page_bytes = spec.page_bytes
        distance = spec.page_bytes + sizes.num_padding_rows * spec.row_bytes
        self.raw = torch.zeros(sizes.num_blocks, distance, dtype=torch.uint8, device=device)
        self.raw.view(DTYPES[sizes.kv_dtype]).fill_(math.nan)
        pages = self.raw[:, : spec.page_bytes] if sizes.num_padding_rows else self.raw.view(-1)
        self.kv_cache = backend_class.kv_view(pages, spec, sizes.num_blocks)
        order = torch.randperm(sizes.num_blocks - 1, generator=self._random) + 1
        self._free = order.tolist()
        self.backend = backend_class(
            MLAShape(
                num_heads=sizes.num_heads,
                num_kv_heads=1,
                head_dim=sizes.latent_dim + sizes.rope_dim,
                latent_dim=sizes.latent_dim,
                rope_dim=sizes.rope_dim,
                block_size=sizes.block_size,
                max_num_seqs=32,
                max_num_batched_tokens=MAX_TOKENS,
                max_blocks_per_request=sizes.num_blocks,
                dtype=DTYPES[sizes.dtype],
                kv_dtype=sizes.kv_dtype,
                device=device,
                page_bytes=distance if sizes.num_padding_rows else None,
            )
        )

    def add(self, num_tokens: int) -> int:
        """Add a request that will have `num_tokens` tokens; return its index in `requests`."""
        sizes = self.sizes
        self.requests.append(
            MLARequest(
                self._random_tensor(num_tokens, sizes.num_heads, sizes.latent_dim),
                self._random_tensor(num_tokens, sizes.num_heads, sizes.rope_dim),
                self._random_tensor(num_tokens, sizes.latent_dim),
                self._random_tensor(num_tokens, sizes.rope_dim),
            )
        )
        return len(self.requests) - 1

    def add_with_prefix_of(self, other: int, num_shared_blocks: int, num_tokens: int) -> int:
        """Add a request that shares the first blocks of another, which are already computed."""
        number = self.add(num_tokens)
        shared = num_shared_blocks * self.sizes.block_size
        donor, request = self.requests[other], self.requests[number]
        request.latent[:shared] = donor.latent[:shared]
        request.k_rope[:shared] = donor.k_rope[:shared]
        request.block_ids = donor.block_ids[:num_shared_blocks]
        request.num_computed = shared
        return number

    def step(
        self, plan: Sequence[tuple[int, int]], padding: Padding | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Run one step of the backend.

        Args:
            plan: Request index and number of new tokens of each request, in batch order.
            padding: Rows to append to the step.

        Returns:
            Output and expected output, `[n, H, C]` each, for each request of the plan.
        """
        padding = padding or Padding()
        inputs = self.inputs(plan, padding.num_tokens)
        return self.finish_step(plan, self.attend(self.layout(plan, padding), inputs))

    def attend(self, layout: StepLayout, inputs: StepRows) -> Tensor:  # [T, H, C]
        """Prepare a step and run the backend on it."""
        metadata = self.backend.prepare(layout)
        out = self.backend.forward(*inputs, self.kv_cache, metadata, SCALE)
        assert_like(out, inputs[0])
        return out

    def finish_step(
        self, plan: Sequence[tuple[int, int]], out: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Mark the tokens of a plan as computed; return pairs as `step` does."""
        out = out.cpu()
        for number, num_new in plan:
            self.requests[number].num_computed += num_new
        ends = list(itertools.accumulate(num_new for _, num_new in plan))
        rows = zip(ends, plan, strict=True)
        return [
            (out[end - num_new : end], self.expected(number, num_new))
            for end, (number, num_new) in rows
        ]

    def expected(self, number: int, num_last: int) -> Tensor:
        """Return the float64 output for the last computed tokens of a request, `[n, H, C]`."""
        request, end = self.requests[number], self.requests[number].num_computed
        stored = DTYPES[self.sizes.kv_dtype]
        return reference_mla(
            request.q_latent[end - num_last : end].double(),
            request.q_rope[end - num_last : end].double(),
            request.latent[:end].to(stored).double(),
            request.k_rope[:end].to(stored).double(),
            SCALE,
        )

    def inputs(self, plan: Sequence[tuple[int, int]], num_padding: int = 0) -> StepRows:
        """Return the rows that a layer passes to `forward` in a step, with NaN as padding."""
        parts = []
        for number, num_new in plan:
            request = self.requests[number]
            parts.append(request.rows(request.num_computed, request.num_computed + num_new))
        q_latent, q_rope, latent, k_rope = (
            self._joined(tensors, num_padding) for tensors in zip(*parts, strict=True)
        )
        return q_latent, q_rope, latent, k_rope

    def layout(self, plan: Sequence[tuple[int, int]], padding: Padding) -> StepLayout:
        """Allocate the blocks that a step needs, and return its layout."""
        size, empty = self.sizes.block_size, padding.num_requests
        query_lens = [num_new for _, num_new in plan]
        seq_lens, slots, tables = [], [], []
        for number, num_new in plan:
            request = self.requests[number]
            end = request.num_computed + num_new
            while len(request.block_ids) * size < end:
                request.block_ids.append(self._free.pop())
            positions = range(request.num_computed, end)
            slots += [request.block_ids[p // size] * size + p % size for p in positions]
            seq_lens.append(end)
            tables.append(request.block_ids)
        width = max(map(len, tables))
        rows = [table + [0] * (width - len(table)) for table in tables] + [[0] * width] * empty
        starts = [0, *itertools.accumulate(query_lens)]
        device = self.sizes.device
        return StepLayout(
            query_start=_int32(starts + starts[-1:] * empty, device),
            seq_lens=_int32(seq_lens + [0] * empty, device),
            block_table=_int32(rows, device),
            slot_mapping=torch.tensor(slots + [0] * padding.num_tokens, device=device),
            num_tokens=len(slots),
            max_query_len=max(query_lens),
            query_lens_host=query_lens,
            seq_lens_host=seq_lens,
        )

    def _joined(self, tensors: Sequence[Tensor], num_padding: int) -> Tensor:
        junk = tensors[0].new_full((num_padding, *tensors[0].shape[1:]), math.nan)
        return torch.cat([*tensors, junk]).to(self.sizes.device)

    def _random_tensor(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random).to(DTYPES[self.sizes.dtype])


def reference_mla(
    q_latent: Tensor,  # [n, H, C], the last n tokens of the context
    q_rope: Tensor,  # [n, H, P]
    latent: Tensor,  # [L, C]
    k_rope: Tensor,  # [L, P]
    scale: float,
) -> Tensor:  # [n, H, C]
    """Return latent attention by its definition, one head and one query at a time."""
    out = torch.empty_like(q_latent)
    for row, head in itertools.product(range(len(q_latent)), range(q_latent.shape[1])):
        end = len(latent) - len(q_latent) + row + 1
        scores = latent[:end] @ q_latent[row, head] + k_rope[:end] @ q_rope[row, head]
        out[row, head] = (scores * scale).softmax(0) @ latent[:end]
    return out


def _int32(values: Sequence[object], device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@cache
def _mla_attention() -> type[KVCacheSpec]:
    own_only = PluginSettings(disable_plugin_autoload=True)
    return load_plugins(own_only).registries.kv_cache_specs.get("mla_attention")
