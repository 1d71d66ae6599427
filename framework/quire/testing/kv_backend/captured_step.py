"""Captured steps of a scene: the same launches over buffers with other contents.

On a GPU the step is captured as a CUDA graph and replayed. On a CPU it is run again, and an
operator that would wait for the device raises. In both cases the lists on the host are empty and
the buffers are larger than the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quire.interfaces.attention import StepLayout
from quire.testing.kv_backend.captured import refill, replayable
from quire.testing.kv_backend.kv_backend_scene import KVBackendScene
from quire.testing.kv_backend.pool_sizes import DTYPES, Padding

CONTEXT = 192  # tokens that one row of the block table can cover


class CapturedAttentionStep:
    """Fixed buffers of a step, and the captured launches over them.

    Args:
        scene: Scene that runs the step.
        num_requests: Number of requests in the buffers, R.
        num_tokens: Number of tokens in the buffers, T; if equal to `num_requests`, each request has
            one token.
    """

    def __init__(self, scene: KVBackendScene, num_requests: int, num_tokens: int) -> None:
        self._scene = scene
        sizes = scene.sizes
        self._layout = StepLayout(
            query_start=self._zeros(torch.int32, num_requests + 1),
            seq_lens=self._zeros(torch.int32, num_requests),
            block_table=self._zeros(torch.int32, num_requests, -(-CONTEXT // sizes.block_size)),
            slot_mapping=self._zeros(torch.int64, num_tokens),
            num_tokens=num_tokens,
            max_query_len=1 if num_tokens == num_requests else num_tokens,
            query_lens_host=[],
            seq_lens_host=[],
        )
        dtype = DTYPES[sizes.dtype]
        self._rows = [self._zeros(dtype, num_tokens, *shape) for shape in sizes.row_shapes]
        self._positions = self._zeros(torch.int64, num_tokens)
        self._run: Callable[[], Tensor] | None = None

    def step(self, plan: Sequence[tuple[int, int]]) -> list[tuple[Tensor, Tensor]]:
        """Write a plan to the buffers, replay, and return pairs of output and expected output."""
        self._fill(plan)
        if self._run is None:
            self._run = replayable(self._launch, self._scene.sizes.device)
        return self._scene.with_expected(plan, self._scene.finish_step(plan, self._run()))

    def _zeros(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._scene.sizes.device)

    def _fill(self, plan: Sequence[tuple[int, int]]) -> None:
        fixed = self._layout
        num_tokens = sum(num_new for _, num_new in plan)
        padding = Padding(len(fixed.seq_lens) - len(plan), fixed.num_tokens - num_tokens)
        refill(fixed, self._scene.layout(plan, padding))
        rows = self._scene.inputs(plan, padding.num_tokens)
        for buffer, new in zip(self._rows, rows, strict=True):
            buffer.copy_(new)
        self._positions.copy_(self._scene.positions(plan, padding.num_tokens))

    def _launch(self) -> Tensor:
        return self._scene.attend(self._layout, self._rows, self._positions)
