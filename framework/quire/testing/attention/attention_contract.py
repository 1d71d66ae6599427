"""Contract of attention backends: every declared capability is tested.

Write a test class for your backend; pytest collects the inherited tests:

    class TestMine(AttentionBackendContract):
        backend_class = MyBackend
        capabilities = MY_CAPABILITIES

All outputs are compared with a plain float64 reference of attention. Layouts other than "kv" have
contracts of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quire.interfaces.attention import AttentionLayerParams
from quire.testing.attention.attention_checks import assert_close
from quire.testing.attention.attention_features import DeclaredFeatures
from quire.testing.attention.attention_graphs import CapturedSteps
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import Padding, SceneSizes
from quire.testing.attention.attention_truth import reference_attention

RAGGED = (1, 37, 16, 5, 64)
SAME = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}  # tolerance for another sum order


class AttentionBackendContract(DeclaredFeatures, CapturedSteps):
    """Tests that an attention backend must pass.

    Attributes:
        backend_class: Backend under test.
        capabilities: Capabilities that the backend is registered with.
        device: Device of the tests; the backend must declare it.
        num_cases: Largest number of cases of each kind; None for all declared cases.
    """

    def test_the_declared_sizes_work(self, sizes: SceneSizes) -> None:
        """Run prompts of uneven lengths in one step, then three decode steps."""
        scene = self._scene(sizes)
        numbers = [scene.add(length + 3) for length in RAGGED]
        self._check(scene, scene.step(list(zip(numbers, RAGGED, strict=True))))
        for _ in range(3):
            self._check(scene, scene.step([(number, 1) for number in numbers]))

    def test_the_declared_types_work(self, types: tuple[str, str]) -> None:
        """Run every dtype with every KV-cache dtype; a float8 cache applies the layer's scales."""
        dtype, kv_dtype = types
        sizes = replace(self._plain(), dtype=dtype, kv_dtype=kv_dtype, k_scale=0.5, v_scale=2.0)
        scene = self._scene(sizes)
        numbers = [scene.add(30), scene.add(9)]
        self._check(scene, scene.step([(numbers[0], 29), (numbers[1], 8)]))
        self._check(scene, scene.step([(number, 1) for number in numbers]))

    @pytest.mark.parametrize("chunk", [1, 2, 7, 16, 40, 200])
    def test_a_prompt_in_chunks_equals_the_whole(self, chunk: int) -> None:
        """Run chunked prefill: a chunk attends to the KV of earlier chunks."""
        scene = self._scene(self._plain())
        length = 200 if chunk >= 40 else 45
        number = scene.add(length)
        for start in range(0, length, chunk):
            self._check(scene, scene.step([(number, min(chunk, length - start))]))

    def test_prompts_and_single_tokens_share_a_step(self) -> None:
        """Run decode rows before, between and after rows with several tokens."""
        scene = self._scene(self._plain())
        decoding = [scene.add(length + 1) for length in (20, 3, 47)]
        self._check(scene, scene.step([(n, len(scene.requests[n].q) - 1) for n in decoding]))
        fresh, chunk, drafts = scene.add(33), scene.add(64), scene.add(30)
        self._check(scene, scene.step([(chunk, 20), (drafts, 25)]))
        a, b, c = decoding
        self._check(
            scene, scene.step([(a, 1), (fresh, 33), (b, 1), (chunk, 44), (drafts, 5), (c, 1)])
        )

    def test_very_uneven_contexts_share_a_step(self) -> None:
        """Run one long context beside many short ones."""
        scene = self._scene(self._plain())
        lengths = (3, 600, 7, 90, 1, 12, 320)
        numbers = [scene.add(length + 2) for length in lengths]
        for number, length in zip(numbers, lengths, strict=True):
            scene.step([(number, length)])
        self._check(scene, scene.step([(number, 1) for number in numbers]))
        self._check(scene, scene.step([(number, 1) for number in reversed(numbers)]))

    def test_a_shared_prefix_is_read_from_the_other_requests_blocks(self) -> None:
        """Compute only the new tokens; the shared blocks must not change."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        donor = scene.add(2 * size + 3)
        scene.step([(donor, 2 * size + 3)])
        guest = scene.add_with_prefix_of(donor, 2, 2 * size + 9)
        before = scene.raw[scene.requests[donor].block_ids].clone()
        self._check(scene, scene.step([(guest, 8)]))
        self._check(scene, scene.step([(guest, 1)]))
        assert torch.equal(before, scene.raw[scene.requests[donor].block_ids]), (
            "a step of one request changed KV blocks of another: write only to slot_mapping"
        )

    def test_the_order_of_requests_changes_nothing(self) -> None:
        """Compare the outputs of the same requests in two batch orders."""
        plan = [(0, 17), (1, 1), (2, 40), (3, 1)]
        outputs = []
        for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
            scene = self._scene(self._plain())
            for length in (17, 25, 40, 9):
                scene.add(length)
            scene.step([(1, 24), (3, 8)])
            pairs = scene.step([plan[index] for index in order])
            outputs.append([pairs[order.index(index)][0] for index in range(4)])
        for one, other in zip(*outputs, strict=True):
            assert_close(one, other, SAME[scene.sizes.dtype])

    @pytest.mark.parametrize("padding", [Padding(0, 3), Padding(2, 2)], ids=["tokens", "requests"])
    def test_padding_writes_to_the_null_block_only(self, padding: Padding) -> None:
        """Padding rows change no output and no block but the null block."""
        scene = self._scene(self._plain())
        first, second = scene.add(30), scene.add(12)
        self._check(scene, scene.step([(first, 20), (second, 11)], padding))
        before = scene.raw.clone()
        self._check(scene, scene.step([(first, 1), (second, 1)], padding))
        self._check_writes(scene, before, [(first, 20), (second, 11)])

    def test_only_the_slots_of_a_step_are_written(self) -> None:
        """Check that a step changes only the blocks of its new tokens."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        still, moving = scene.add(3 * size), scene.add(3 * size)
        scene.step([(still, 2 * size), (moving, size)])
        before = scene.raw.clone()
        scene.step([(moving, size + 1)])
        self._check_writes(scene, before, [(moving, size), (moving, 2 * size)])

    def test_a_block_is_contiguous_and_outermost(self) -> None:
        """The engine copies and frees whole blocks, independent of their layout."""
        scene = self._scene(self._plain())
        assert len(scene.kv_cache) == len(scene.raw), (
            f"dimension 0 of kv_view must be B = {len(scene.raw)}, got {len(scene.kv_cache)}"
        )
        scene.raw.zero_()
        scene.kv_cache[3].fill_(1)
        changed = scene.raw.any(1).nonzero().flatten().tolist()
        assert changed == [3], (
            f"writing kv_view[3] must change block 3 only, but changed blocks {changed}"
        )

    def test_layers_share_the_metadata_of_a_step(self) -> None:
        """Use the metadata of one `prepare` for two layers, each with its own cache and scale."""
        scene = self._scene(self._plain())
        scene.add(20)
        metadata = scene.backend.prepare(scene.layout([(0, 20)], Padding()))
        q, k, v = scene.inputs([(0, 20)])
        first, second = AttentionLayerParams(0.2), AttentionLayerParams(0.5)
        other_cache = torch.zeros_like(scene.kv_cache)
        scene.backend.forward(q, k, v, scene.kv_cache, metadata, first)
        before = scene.raw.clone()
        out = scene.backend.forward(q, -k, 2 * v, other_cache, metadata, second)
        expected = reference_attention(q.double(), -k.double(), 2 * v.double(), second)
        assert_close(out.cpu(), expected.cpu(), 2 * self.tolerance(scene.sizes))
        assert torch.equal(before, scene.raw), "one layer wrote to the KV cache of another"

    def test_a_write_from_outside_is_seen_after_forget_context(self) -> None:
        """Change a block between two steps, as a KV store or a block copy does."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        number, other = scene.add(40), scene.add(size)
        scene.step([(number, 30), (other, size)])
        for _ in range(2):
            self._check(scene, scene.step([(number, 1)]))
        changed, source = scene.requests[number], scene.requests[other]
        scene.raw[changed.block_ids[0]] = scene.raw[source.block_ids[0]]
        changed.k[:size], changed.v[:size] = source.k[:size], source.v[:size]
        scene.backend.forget_context()
        self._check(scene, scene.step([(number, 1)]))

    def _check_writes(
        self, scene: AttentionScene, before: Tensor, positions: Sequence[tuple[int, int]]
    ) -> None:
        size = scene.sizes.block_size
        allowed = {scene.requests[number].block_ids[p // size] for number, p in positions} | {0}
        changed = set((before != scene.raw).any(1).nonzero().flatten().tolist())
        assert changed <= allowed, (
            f"the step wrote to blocks {sorted(changed - allowed)}, where it has no new tokens"
        )
