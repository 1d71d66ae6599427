"""Captured steps of latent attention: the same launches over buffers with other contents.

On a GPU the step is captured as a CUDA graph and replayed. On a CPU it is run again, and an
operator that would wait for the device raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quire.interfaces.attention import StepLayout
from quire.testing.attention.attention_sizes import Padding
from quire.testing.attention.captured import refill, replayable
from quire.testing.mla.mla_scene import MLAScene


class CapturedMLAStep:
    """Fixed buffers of a step, and the captured launches over them.

    Args:
        scene: Scene that runs the step.
        num_requests: Number of requests in the buffers, R.
        num_tokens: Number of tokens in the buffers, T; if equal to `num_requests`, each request has
            one token.
    """

    def __init__(self, scene: MLAScene, num_requests: int, num_tokens: int) -> None:
        self._scene = scene
        self._device = scene.sizes.device
        self._layout = StepLayout(
            query_start=self._zeros(torch.int32, num_requests + 1),
            seq_lens=self._zeros(torch.int32, num_requests),
            block_table=self._zeros(torch.int32, num_requests, scene.sizes.num_blocks),
            slot_mapping=self._zeros(torch.int64, num_tokens),
            num_tokens=num_tokens,
            max_query_len=1 if num_tokens == num_requests else num_tokens,
            query_lens_host=[],
            seq_lens_host=[],
        )
        number = scene.add(1)
        q_latent, q_rope, latent, k_rope = (
            self._zeros(tensor.dtype, num_tokens, *tensor.shape[1:])
            for tensor in scene.requests[number].rows(0, 1)
        )
        self._inputs = q_latent, q_rope, latent, k_rope
        self._run: Callable[[], Tensor] | None = None

    def step(self, plan: Sequence[tuple[int, int]]) -> list[tuple[Tensor, Tensor]]:
        """Write a plan to the buffers, replay, and return pairs of output and expected output."""
        self._fill(plan)
        if self._run is None:
            self._run = replayable(self._launch, self._device)
        return self._scene.finish_step(plan, self._run())

    def _zeros(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def _fill(self, plan: Sequence[tuple[int, int]]) -> None:
        fixed = self._layout
        num_tokens = sum(num_new for _, num_new in plan)
        padding = Padding(len(fixed.seq_lens) - len(plan), fixed.num_tokens - num_tokens)
        refill(fixed, self._scene.layout(plan, padding))
        inputs = self._scene.inputs(plan, padding.num_tokens)
        for buffer, new in zip(self._inputs, inputs, strict=True):
            buffer.copy_(new)

    def _launch(self) -> Tensor:
        return self._scene.attend(self._layout, self._inputs)
