"""Contract tests of captured steps: the same launches over buffers with other contents.

On a GPU the step is captured as a CUDA graph and replayed. On a CPU it is run again, and an
operator that would wait for the device raises. In both cases the lists on the host are empty and
the buffers are larger than the step.
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
from quire.testing.attention.captured import refill, replayable

NUM_REQUESTS = 6  # in a captured step
NUM_TOKENS = 70
CONTEXT = 192  # tokens that one row of the block table can cover


class CapturedScene:
    """Fixed buffers of a step, and the captured launches over them.

    Args:
        scene: Scene that runs the step.
        num_requests: Number of requests in the buffers, R.
        num_tokens: Number of tokens in the buffers, T; if equal to `num_requests`, each request has
            one token.
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
        """Write a plan to the buffers, replay, and return pairs of output and expected output."""
        scene = self._scene
        self._fill(plan)
        if self._run is None:
            self._run = replayable(self._launch, scene.sizes.device)
        outputs = scene.finish_step(plan, self._run())
        rows = zip(outputs, plan, strict=True)
        return [(output, scene.expected(number, num_new)) for output, (number, num_new) in rows]

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
    """Tests of backends that declare `graphs`."""

    def test_a_captured_step_of_single_tokens_is_replayed(self, captured: SceneSizes) -> None:
        """Replay with other requests, lengths and blocks, and with prefill steps between."""
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
        """Replay the same launches for one token per request and for all tokens in one request."""
        scene = self._scene(captured_whole)
        a, b, c = (scene.add(length) for length in (60, 90, 75))
        step = CapturedScene(scene, NUM_REQUESTS, NUM_TOKENS)
        self._check(scene, step.step([(a, 20), (b, 40), (c, 3)]))
        self._check(scene, step.step([(c, 1), (b, 1), (a, 1)]))
        self._check(scene, step.step([(c, NUM_TOKENS)]))
        self._check(scene, step.step([(b, 5), (a, 33), (c, 1)]))
