"""A scene for latent attention: requests, their true rows, and a pool of poisoned blocks.

It is to them what `attention_scene` is to others: small and slow, with blocks given out in random
order and NaN in every byte that no step has written.
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
MAX_TOKENS = 640  # of one step
SCALE = 0.2

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

StepRows = tuple[Tensor, Tensor, Tensor, Tensor]  # q_latent, q_rope, latent, k_rope of some tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MLASizes:
    """What a scene is built for."""

    num_heads: int = 4
    latent_dim: int = 64
    rope_dim: int = 16
    block_size: int = 16
    dtype: str = "float32"
    kv_dtype: str = "float32"
    device: str = "cpu"
    num_padding_rows: int = 0  # between pages, each of C + P numbers

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return 48 + POOL_TOKENS // self.block_size

    @property
    def spec(self) -> KVCacheSpec:
        """Return the spec that gives pages their size."""
        row = self.latent_dim + self.rope_dim
        layer = KVLayer("scene", "mla_attention", 1, row, (("latent_dim", self.latent_dim),))
        return _mla_attention()(layer, self.block_size, self.kv_dtype)


@dataclass(slots=True)
class MLARequest:
    """One request: what its tokens will ask and hold, and where they lie."""

    q_latent: Tensor  # [L, H, C]
    q_rope: Tensor  # [L, H, P]
    latent: Tensor  # [L, C]
    k_rope: Tensor  # [L, P]
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)

    def rows(self, start: int, stop: int) -> StepRows:
        """Return what the layer gives to a backend for some of the tokens."""
        here = slice(start, stop)
        return self.q_latent[here], self.q_rope[here], self.latent[here], self.k_rope[here]


class MLAScene:
    """Requests that share a pool, and the backend under test.

    Attributes:
        requests: In the order in which they came.
        raw: uint8, `[B, bytes from page to page]`; the bytes behind the backend's view.
        page_bytes: How many of them, from the first, are the page.
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
        """Bring in a request that will have so many tokens; return its number."""
        sizes = self.sizes
        self.requests.append(
            MLARequest(
                self._draw(num_tokens, sizes.num_heads, sizes.latent_dim),
                self._draw(num_tokens, sizes.num_heads, sizes.rope_dim),
                self._draw(num_tokens, sizes.latent_dim),
                self._draw(num_tokens, sizes.rope_dim),
            )
        )
        return len(self.requests) - 1

    def add_with_prefix_of(self, other: int, num_shared_blocks: int, num_tokens: int) -> int:
        """Bring in a request whose first blocks are those of another, computed already."""
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
            plan: Request and number of its next tokens, in the order of the batch.
            padding: Rows to add behind the step.

        Returns:
            For each request of the plan, what the backend said and what is true, `[n, H, C]`.
        """
        padding = padding or Padding()
        inputs = self.inputs(plan, padding.num_tokens)
        return self.computed(plan, self.attend(self.layout(plan, padding), inputs))

    def attend(self, layout: StepLayout, inputs: StepRows) -> Tensor:  # [T, H, C]
        """Run the backend."""
        metadata = self.backend.prepare(layout)
        out = self.backend.forward(*inputs, self.kv_cache, metadata, SCALE)
        assert_like(out, inputs[0])
        return out

    def computed(self, plan: Sequence[tuple[int, int]], out: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Count the tokens of a plan as computed; return answers beside truths, as `step` does."""
        out = out.cpu()
        for number, num_new in plan:
            self.requests[number].num_computed += num_new
        ends = list(itertools.accumulate(num_new for _, num_new in plan))
        shares = zip(ends, plan, strict=True)
        return [
            (out[end - num_new : end], self.truth(number, num_new))
            for end, (number, num_new) in shares
        ]

    def truth(self, number: int, num_last: int) -> Tensor:
        """Return the float64 answer for the last computed tokens of a request, `[n, H, C]`."""
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
        """Return what a layer gives to `forward` in a step, with NaN as padding."""
        parts = []
        for number, num_new in plan:
            request = self.requests[number]
            parts.append(request.rows(request.num_computed, request.num_computed + num_new))
        q_latent, q_rope, latent, k_rope = (
            self._joined(tensors, num_padding) for tensors in zip(*parts, strict=True)
        )
        return q_latent, q_rope, latent, k_rope

    def layout(self, plan: Sequence[tuple[int, int]], padding: Padding) -> StepLayout:
        """Give out the blocks that a step needs, and say where its tokens go."""
        size, empty = self.sizes.block_size, padding.num_requests
        query_lens = [num_new for _, num_new in plan]
        seq_lens, slots, tables = [], [], []
        for number, num_new in plan:
            request = self.requests[number]
            end = request.num_computed + num_new
            while len(request.block_ids) * size < end:
                request.block_ids.append(self._free.pop())
            places = range(request.num_computed, end)
            slots += [request.block_ids[at // size] * size + at % size for at in places]
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

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random).to(DTYPES[self.sizes.dtype])


def reference_mla(
    q_latent: Tensor,  # [n, H, C], the last n tokens of the context
    q_rope: Tensor,  # [n, H, P]
    latent: Tensor,  # [L, C]
    k_rope: Tensor,  # [L, P]
    scale: float,
) -> Tensor:  # [n, H, C]
    """Return latent attention by its definition, one head and one query after the other."""
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
