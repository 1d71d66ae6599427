"""Captured steps: the device runs what the host once launched, over other numbers.

On a GPU the step is captured as a CUDA graph and replayed. On a CPU it is run again, and what would
ask the device for a number raises: the host's lists are empty either way, and the buffers larger
than the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quire.interfaces.attention import StepLayout
from quire.testing.attention.attention_checks import AttentionChecks
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import Padding, SceneSizes
from quire.testing.attention.attention_truth import DTYPES
from quire.testing.attention.captured import refill, repeated

NUM_REQUESTS = 6  # of a captured step
NUM_TOKENS = 70
CONTEXT = 192  # tokens that a row of the block table has place for


class CapturedScene:
    """The fixed buffers of a step, and what was launched over them.

    Args:
        scene: Whose step it is.
        num_requests: R of the buffers.
        num_tokens: T of the buffers; as many as requests: one token each.
    """

    def __init__(self, scene: AttentionScene, num_requests: int, num_tokens: int) -> None:
        self._scene = scene
        sizes, device = scene.sizes, scene.sizes.device
        width = -(-CONTEXT // sizes.block_size)
        self._layout = StepLayout(
            query_start=torch.zeros(num_requests + 1, dtype=torch.int32, device=device),
            seq_lens=torch.zeros(num_requests, dtype=torch.int32, device=device),
            block_table=torch.zeros(num_requests, width, dtype=torch.int32, device=device),
            slot_mapping=torch.zeros(num_tokens, dtype=torch.int64, device=device),
            num_tokens=num_tokens,
            max_query_len=1 if num_tokens == num_requests else num_tokens,
            query_lens_host=[],
            seq_lens_host=[],
        )
        dtype = DTYPES[sizes.dtype]
        q, k, v = (
            torch.zeros(num_tokens, num_heads, sizes.head_dim, dtype=dtype, device=device)
            for num_heads in (sizes.num_heads, sizes.num_kv_heads, sizes.num_kv_heads)
        )
        self._heads = q, k, v
        self._positions = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        self._params = sizes.params
        self._run: Callable[[], Tensor] | None = None

    def step(self, plan: Sequence[tuple[int, int]]) -> list[tuple[Tensor, Tensor]]:
        """Put a plan into the buffers, replay, and return answers beside truths."""
        scene = self._scene
        self._fill(plan)
        if self._run is None:
            self._run = repeated(self._launch, scene.sizes.device)
        answers = scene.computed(plan, self._run())
        shares = zip(answers, plan, strict=True)
        return [(answer, scene.truth(number, num_new)) for answer, (number, num_new) in shares]

    def _fill(self, plan: Sequence[tuple[int, int]]) -> None:
        fixed = self._layout
        num_tokens = sum(num_new for _, num_new in plan)
        padding = Padding(len(fixed.seq_lens) - len(plan), fixed.num_tokens - num_tokens)
        refill(fixed, self._scene.layout(plan, padding))
        heads = self._scene.inputs(plan, padding.num_tokens)
        for buffer, new in zip(self._heads, heads, strict=True):
            buffer.copy_(new)
        self._positions.copy_(self._scene.positions(plan, padding.num_tokens))

    def _launch(self) -> Tensor:
        return self._scene.attend(self._layout, self._heads, self._positions, self._params)


class CapturedSteps(AttentionChecks):
    """The part of the contract for who declares `graphs`."""

    def test_a_captured_step_of_single_tokens_is_replayed(self, captured: SceneSizes) -> None:
        """With other requests, lengths and blocks, and steps of prompts between."""
        scene = self._scene(captured)
        numbers = [scene.add(length + 8) for length in (30, 3, 47, 1)]
        lengths = (30, 3, 47, 1)
        self._check(scene, scene.step(list(zip(numbers, lengths, strict=True))))
        a, b, c, d = numbers
        step = CapturedScene(scene, NUM_REQUESTS, NUM_REQUESTS)
        self._check(scene, step.step([(a, 1), (b, 1), (c, 1), (d, 1)]))
        self._check(scene, step.step([(c, 1), (a, 1)]))
        late = scene.add(120)
        self._check(scene, scene.step([(late, 100), (b, 1)]))
        self._check(scene, step.step([(d, 1), (late, 1), (b, 1), (a, 1), (c, 1)]))
        self._check(scene, step.step([(late, 1)]))

    def test_a_captured_step_of_any_tokens_is_replayed(self, captured_whole: SceneSizes) -> None:
        """One token a request, or all tokens for one of them, from the same launches."""
        scene = self._scene(captured_whole)
        a, b, c = (scene.add(length) for length in (60, 90, 75))
        step = CapturedScene(scene, NUM_REQUESTS, NUM_TOKENS)
        self._check(scene, step.step([(a, 20), (b, 40), (c, 3)]))
        self._check(scene, step.step([(c, 1), (b, 1), (a, 1)]))
        self._check(scene, step.step([(c, NUM_TOKENS)]))
        self._check(scene, step.step([(b, 5), (a, 33), (c, 1)]))
