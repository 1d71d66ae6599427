"""Test scene of a backend: requests, their exact rows, and a pool of poisoned blocks.

The scene is small and slow on purpose. It holds the whole context of every request, so the output
of any step can be computed in float64 by definition. The backend gets only what the engine would
pass to it. Blocks are allocated in random order. Bytes that no step has written hold NaN, and so do
the rows that padding writes and the blocks that no query sees any more: a read of any of them makes
the output NaN.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from quire.interfaces.attention import KVBackend, StepLayout
from quire.testing.kv_backend.pool_sizes import DTYPES, Padding, PoolSizes

POISON = 0xFF  # all bits set are NaN in every KV-cache dtype; for int8, in its scales


def assert_like(out: Tensor, q: Tensor) -> None:
    """Check that an output has a row for each query, padding included, and the queries' dtype."""
    assert out.shape == q.shape, f"the output must have shape {[*q.shape]}, got {[*out.shape]}"
    assert out.dtype == q.dtype, f"the output must have dtype {q.dtype}, got {out.dtype}"


@dataclass(slots=True)
class SceneRequest:
    """One request: the rows of all its tokens, and its blocks.

    Attributes:
        rows: Tensors that a layer passes to `forward`, `[L, ...]` each: queries, and the two that
            are stored.
    """

    rows: Sequence[Tensor]
    num_computed: int = 0
    block_ids: list[int] = field(default_factory=list)


class KVBackendScene(ABC):
    """Requests that share a pool, and the backend under test.

    Attributes:
        requests: Requests in the order in which they were added.
        raw: Memory behind the backend's view, uint8 `[B, bytes from page to page]`.
        page_bytes: Number of bytes of a page, from the first of its row of `raw`.
        spec: KV-cache spec that defines the page size.
        params: Last argument of `forward`.
    """

    def __init__(self, backend_class: type[KVBackend], sizes: PoolSizes) -> None:
        self.sizes = sizes
        self.requests: list[SceneRequest] = []
        self._random = torch.Generator().manual_seed(0)
        self.spec, self.params = sizes.spec, sizes.params
        self.page_bytes = self.spec.page_bytes
        raw_shape, device = (sizes.num_blocks, sizes.page_distance), torch.device(sizes.device)
        self.raw = torch.full(raw_shape, POISON, dtype=torch.uint8, device=device)
        pages = self.raw[:, : self.page_bytes] if sizes.num_padding_rows else self.raw.view(-1)
        self.kv_cache = backend_class.kv_view(pages, self.spec, sizes.num_blocks)
        order = torch.randperm(sizes.num_blocks - 1, generator=self._random) + 1
        self._free = order.tolist()
        self.backend: Any = backend_class(sizes.shape)

    @abstractmethod
    def as_read(self, rows: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return a request's rows from position 0 in float64, as attention reads them."""

    @abstractmethod
    def reference(self, rows: Sequence[Tensor], params: Any) -> Tensor:
        """Return attention by its definition, for the last tokens of a context.

        Args:
            rows: Queries of the last tokens, and the stored rows of all, in float64.
            params: Last argument of `forward`.
        """

    @abstractmethod
    def params_with(self, scale: float) -> Any:
        """Return the parameters of a layer whose scores have this factor."""

    def add(self, num_tokens: int) -> int:
        """Add a request that will have `num_tokens` tokens; return its index in `requests`."""
        rows = [self._random_tensor(num_tokens, *shape) for shape in self.sizes.row_shapes]
        self.requests.append(SceneRequest(rows))
        return len(self.requests) - 1

    def add_with_prefix_of(self, other: int, num_shared_blocks: int, num_tokens: int) -> int:
        """Add a request that shares the first blocks of another, which are already computed."""
        number = self.add(num_tokens)
        donor, request = self.requests[other], self.requests[number]
        request.num_computed = num_shared_blocks * self.sizes.block_size
        self.copy_rows(other, number, request.num_computed)
        request.block_ids = donor.block_ids[:num_shared_blocks]
        return number

    def copy_rows(self, source: int, target: int, num_tokens: int) -> None:
        """Give a request the first rows of another."""
        pairs = zip(self.requests[target].rows, self.requests[source].rows, strict=True)
        for to, rows in pairs:
            to[:num_tokens] = rows[:num_tokens]

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
            Output and expected output, `[n, H, ...]` each, for each request of the plan.
        """
        return self.with_expected(plan, self.outputs(plan, padding))

    def outputs(
        self, plan: Sequence[tuple[int, int]], padding: Padding | None = None
    ) -> list[Tensor]:
        """Run one step of the backend; return the output of each request, `[n, H, ...]`."""
        padding = padding or Padding()
        layout = self.layout(plan, padding)
        rows = self.inputs(plan, padding.num_tokens)
        positions = self.positions(plan, padding.num_tokens)
        return self.finish_step(plan, self.attend(layout, rows, positions))

    def with_expected(
        self, plan: Sequence[tuple[int, int]], outputs: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """Return the outputs of a finished step, each with the expected one."""
        rows = zip(outputs, plan, strict=True)
        return [(output, self.expected(number, num_new)) for output, (number, num_new) in rows]

    def attend(self, layout: StepLayout, rows: Sequence[Tensor], positions: Tensor) -> Tensor:
        """Prepare a step and run one layer of it, without any change to the requests."""
        out = self._forward(rows, positions, self.backend.prepare(layout))
        assert_like(out, rows[0])
        return out

    def finish_step(self, plan: Sequence[tuple[int, int]], out: Tensor) -> list[Tensor]:
        """Mark the tokens of a step as computed, and split its output by request."""
        out = out.cpu()
        for number, num_new in plan:
            self.requests[number].num_computed += num_new
        ends = list(itertools.accumulate(num_new for _, num_new in plan))
        return [out[end - num_new : end] for end, (_, num_new) in zip(ends, plan, strict=True)]

    def expected(self, number: int, num_last: int) -> Tensor:
        """Return the float64 output for the last computed tokens of a request, `[n, H, ...]`."""
        request = self.requests[number]
        end = request.num_computed
        *queries, first, second = self.as_read([rows[:end] for rows in request.rows])
        queries = [q[end - num_last :] for q in queries]
        return self.reference([*queries, first, second], self.params)

    def inputs(self, plan: Sequence[tuple[int, int]], num_padding: int = 0) -> list[Tensor]:
        """Return the tensors that a layer passes to `forward` in a step, with NaN as padding."""
        parts = []
        for number, num_new in plan:
            start = self.requests[number].num_computed
            parts.append([rows[start : start + num_new] for rows in self.requests[number].rows])
        return [self._joined(tensors, num_padding) for tensors in zip(*parts, strict=True)]

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
        starts = [0, *itertools.accumulate(query_lens)]
        tables = [self.requests[number].block_ids for number, _ in plan]
        width, empty = max(map(len, tables)), padding.num_requests
        rows = [table + [0] * (width - len(table)) for table in tables] + [[0] * width] * empty
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

    def _forward(self, rows: Sequence[Tensor], positions: Tensor, metadata: Any) -> Tensor:
        del positions
        out: Tensor = self.backend.forward(*rows, self.kv_cache, metadata, self.params)
        return out

    def _joined(self, tensors: Sequence[Tensor], num_padding: int) -> Tensor:
        junk = tensors[0].new_full((num_padding, *tensors[0].shape[1:]), math.nan)
        return torch.cat([*tensors, junk]).to(self.sizes.device)

    def _random_tensor(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random).to(DTYPES[self.sizes.dtype])

    def _allocate_blocks(self, request: SceneRequest, num_new: int) -> None:
        num_blocks = -(-(request.num_computed + num_new) // self.sizes.block_size)
        while len(request.block_ids) < num_blocks:
            request.block_ids.append(self._free.pop())

    def _slots(self, number: int, num_new: int) -> list[int]:
        request, size = self.requests[number], self.sizes.block_size
        positions = range(request.num_computed, request.num_computed + num_new)
        return [request.block_ids[p // size] * size + p % size for p in positions]


def _int32(values: Sequence[object], device: str) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)
