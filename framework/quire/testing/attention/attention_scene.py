"""Test scene for attention backends: requests, their exact K and V, and a pool of poisoned blocks.

The scene is small and slow on purpose. It holds the whole context of every request, so the output
of any step can be computed in float64 by the definition of attention. The backend gets only what
the engine would pass to it. Blocks are allocated in random order. Bytes that no step has written
hold NaN, and so do the rows that padding writes and the blocks that no query sees any more: a read
of any of them makes the output NaN.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    RotaryStep,
    StepLayout,
)
from quire.testing.attention.attention_sizes import (
    POOL_TOKENS,
    Padding,
    SceneSizes,
    full_attention_spec,
)
from quire.testing.attention.attention_truth import (
    DTYPES,
    RotaryReference,
    first_seen,
    kv_round_trip,
    reference_attention,
)

MAX_TOKENS = 640  # in one step
POISON = 0xFF  # all bits set are NaN in every KV-cache dtype; for int8, in its scales


def assert_like(out: Tensor, q: Tensor) -> None:
    """Check that an output has a row for each query, padding included, and the queries' dtype."""
    assert out.shape == q.shape, f"the output must have shape {[*q.shape]}, got {[*out.shape]}"
    assert out.dtype == q.dtype, f"the output must have dtype {q.dtype}, got {out.dtype}"


@dataclass(slots=True)
class SceneRequest:
    """One request: q, k and v of all its tokens, and its blocks."""

    q: Tensor  # [L, H, D]
    k: Tensor  # [L, K, D]
    v: Tensor  # [L, K, D]
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)


class AttentionScene:
    """Requests that share a pool, and the backend under test.

    Attributes:
        requests: Requests in the order in which they were added.
        raw: Memory behind the backend's view, uint8 `[B, bytes from page to page]`.
        page_bytes: Number of bytes of a page, from the first of its row of `raw`.
        spec: KV-cache spec that defines the page size.
        rotary_reference: Norm and rotary embedding that the backend applies to q and k; None if it
            applies none.
    """

    def __init__(
        self, backend_class: type[AttentionBackend], sizes: SceneSizes, *, seed: int = 0
    ) -> None:
        self.sizes = sizes
        self.requests: list[SceneRequest] = []
        self._random = torch.Generator().manual_seed(seed)
        self.spec = spec = full_attention_spec(sizes)
        device = torch.device(sizes.device)
        self.page_bytes = spec.page_bytes
        distance = spec.page_bytes + sizes.num_padding_rows * spec.row_bytes
        self.raw = torch.zeros(sizes.num_blocks, distance, dtype=torch.uint8, device=device)
        self.raw.fill_(POISON)
        pages = self.raw[:, : spec.page_bytes] if sizes.num_padding_rows else self.raw.view(-1)
        self.kv_cache = backend_class.kv_view(pages, spec, sizes.num_blocks)
        self.rotary_reference = self._random_rotary() if sizes.rotary else None
        self._table, self._norm_weight = self._rotary_inputs(device)
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
                kv_dtype=sizes.kv_dtype,
                device=device,
                page_bytes=distance if sizes.num_padding_rows else None,
                batch_invariant=sizes.batch_invariant,
            )
        )

    def add(self, num_tokens: int) -> int:
        """Add a request that will have `num_tokens` tokens; return its index in `requests`."""
        sizes = self.sizes
        q = self._random_tensor(num_tokens, sizes.num_heads)
        k, v = (self._random_tensor(num_tokens, sizes.num_kv_heads) for _ in range(2))
        self.requests.append(SceneRequest(q, k, v))
        return len(self.requests) - 1

    def add_with_prefix_of(self, other: int, num_shared_blocks: int, num_tokens: int) -> int:
        """Add a request that shares the first blocks of another, which are already computed."""
        number = self.add(num_tokens)
        shared = num_shared_blocks * self.sizes.block_size
        donor, request = self.requests[other], self.requests[number]
        request.k[:shared], request.v[:shared] = donor.k[:shared], donor.v[:shared]
        request.block_ids = donor.block_ids[:num_shared_blocks]
        request.num_computed = shared
        return number

    def end(self, number: int) -> None:
        """Free the blocks of a request without clearing them; the next request reuses them."""
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
            plan: Request index and number of new tokens of each request, in batch order.
            padding: Rows to append to the step, as an engine with fixed batch sizes does.

        Returns:
            Output and expected output, `[n, H, D]` each, for each request of the plan.
        """
        outputs = self.outputs(plan, padding)
        rows = zip(outputs, plan, strict=True)
        return [(output, self.expected(number, num_new)) for output, (number, num_new) in rows]

    def outputs(
        self, plan: Sequence[tuple[int, int]], padding: Padding | None = None
    ) -> list[Tensor]:
        """Run one step of the backend; return the output of each request, `[n, H, D]`."""
        padding = padding or Padding()
        layout = self.layout(plan, padding)
        heads = self.inputs(plan, padding.num_tokens)
        positions = self.positions(plan, padding.num_tokens)
        return self.finish_step(plan, self.attend(layout, heads, positions, self.sizes.params))

    def attend(
        self,
        layout: StepLayout,
        heads: tuple[Tensor, Tensor, Tensor],
        positions: Tensor,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Prepare a step and run one layer of it, without any change to the requests."""
        metadata = self.backend.prepare(layout)
        if self.rotary_reference is None:
            out = self.backend.forward(*heads, self.kv_cache, metadata, layer)
        else:
            eps = self.rotary_reference.norm_eps
            rotary = RotaryStep(self._table, positions, self._norm_weight, eps)
            qkv = torch.cat(heads, 1)
            out = self.backend.forward_rotary(qkv, rotary, self.kv_cache, metadata, layer)
        assert_like(out, heads[0])
        return out

    def finish_step(self, plan: Sequence[tuple[int, int]], out: Tensor) -> list[Tensor]:
        """Mark the tokens of a step as computed, and split its output by request."""
        out = out.cpu()
        for number, num_new in plan:
            self.requests[number].num_computed += num_new
        ends = list(itertools.accumulate(num_new for _, num_new in plan))
        return [out[end - num_new : end] for end, (_, num_new) in zip(ends, plan, strict=True)]

    def expected(self, number: int, num_last: int) -> Tensor:
        """Return the float64 output for the last computed tokens of a request, `[n, H, D]`."""
        request, end = self.requests[number], self.requests[number].num_computed
        sizes, q, k = self.sizes, request.q[:end].double(), request.k[:end]
        if self.rotary_reference is not None:
            q, k = self.rotary_reference.of(q, 0), self.rotary_reference.of(k, sizes.num_heads)
        return reference_attention(
            q[end - num_last :],
            kv_round_trip(k, sizes.kv_dtype, sizes.k_scale),
            kv_round_trip(request.v[:end], sizes.kv_dtype, sizes.v_scale),
            sizes.params,
        )

    def free_unseen_blocks(self, number: int, *, is_reused: bool = False) -> None:
        """Free the blocks that the next tokens of a request do not see, as its spec does.

        Args:
            number: Index of the request.
            is_reused: Whether the block table keeps their ids, as if other requests owned them now;
                otherwise the table names the null block. Both hold NaN.
        """
        request = self.requests[number]
        num_gone = first_seen(request.num_computed, self.sizes.params) // self.sizes.block_size
        for index in range(num_gone):
            self.raw[request.block_ids[index]] = POISON
            request.block_ids[index] *= is_reused

    def inputs(
        self, plan: Sequence[tuple[int, int]], num_padding: int = 0
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v of a step, `[T, heads, D]`, with NaN as padding."""

        def rows_of(sources: Sequence[Tensor]) -> Tensor:
            rows = [
                source[request.num_computed : request.num_computed + num_new]
                for source, (request, num_new) in zip(sources, scheduled, strict=True)
            ]
            junk = torch.full_like(rows[0][:1], math.nan).expand(num_padding, -1, -1)
            return torch.cat([*rows, junk]).to(self.sizes.device)

        scheduled = [(self.requests[number], num_new) for number, num_new in plan]
        requests = [request for request, _ in scheduled]
        return (
            rows_of([request.q for request in requests]),
            rows_of([request.k for request in requests]),
            rows_of([request.v for request in requests]),
        )

    def positions(self, plan: Sequence[tuple[int, int]], num_padding: int = 0) -> Tensor:
        """Return the positions of a step's tokens, `[T]`; padding has position 0."""
        firsts = [(self.requests[number].num_computed, num_new) for number, num_new in plan]
        known = [first + index for first, num_new in firsts for index in range(num_new)]
        return torch.tensor(known + [0] * num_padding, device=self.sizes.device)

    def layout(self, plan: Sequence[tuple[int, int]], padding: Padding) -> StepLayout:
        """Allocate the blocks that a step needs, and return its layout."""
        for number, num_new in plan:
            self._allocate_blocks(self.requests[number], num_new)
        query_lens = [num_new for _, num_new in plan]
        seq_lens = [self.requests[number].num_computed + num_new for number, num_new in plan]
        slots = [slot for number, num_new in plan for slot in self._slots(number, num_new)]
        starts = [sum(query_lens[:index]) for index in range(len(plan) + 1)]
        starts += starts[-1:] * padding.num_requests
        tables = [self.requests[number].block_ids for number, _ in plan]
        width = max(map(len, tables))
        rows = [table + [0] * (width - len(table)) for table in tables]
        empty = padding.num_requests
        device = self.sizes.device
        return StepLayout(
            query_start=torch.tensor(starts, dtype=torch.int32, device=device),
            seq_lens=torch.tensor(seq_lens + [0] * empty, dtype=torch.int32, device=device),
            block_table=torch.tensor(rows + [[0] * width] * empty, dtype=torch.int32).to(device),
            slot_mapping=torch.tensor(slots + [0] * padding.num_tokens, device=device),
            num_tokens=len(slots),
            max_query_len=max(query_lens),
            query_lens_host=query_lens,
            seq_lens_host=seq_lens,
        )

    def _random_rotary(self) -> RotaryReference:
        sizes = self.sizes
        angles = 6.0 * torch.rand(POOL_TOKENS, sizes.head_dim // 2, generator=self._random)
        cos, sin = angles.cos(), angles.sin()
        table = torch.stack((torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)), 1)
        shape = (sizes.num_heads + sizes.num_kv_heads, sizes.head_dim)
        weight = torch.rand(shape, generator=self._random) + 0.5
        dtype = DTYPES[sizes.dtype]
        return RotaryReference(
            table.to(dtype), weight.to(dtype) if sizes.rotary == "normed" else None
        )

    def _rotary_inputs(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        if self.rotary_reference is None:
            return torch.empty(0, device=device), None
        weight = self.rotary_reference.norm_weight
        return self.rotary_reference.table.to(device), None if weight is None else weight.to(device)

    def _random_tensor(self, num_tokens: int, num_heads: int) -> Tensor:
        shape = (num_tokens, num_heads, self.sizes.head_dim)
        return torch.randn(shape, generator=self._random).to(DTYPES[self.sizes.dtype])

    def _allocate_blocks(self, request: SceneRequest, num_new: int) -> None:
        num_blocks = -(-(request.num_computed + num_new) // self.sizes.block_size)
        while len(request.block_ids) < num_blocks:
            request.block_ids.append(self._free.pop())

    def _slots(self, number: int, num_new: int) -> list[int]:
        request, size = self.requests[number], self.sizes.block_size
        positions = range(request.num_computed, request.num_computed + num_new)
        return [request.block_ids[p // size] * size + p % size for p in positions]
