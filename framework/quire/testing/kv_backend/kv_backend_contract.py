"""Contract of the backends of every layout: what a step computes, reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

import pytest
import torch

from quire.testing.kv_backend.captured_step import CapturedAttentionStep
from quire.testing.kv_backend.kv_backend_checks import KVBackendChecks, Scene, assert_close
from quire.testing.kv_backend.kv_backend_scene import KVBackendScene
from quire.testing.kv_backend.pool_sizes import Padding, PoolSizes
from quire.testing.probes import check_probe

NUM_REQUESTS = 6  # in a captured step
SAME = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}  # tolerance for another sum order


class KVBackendContract(KVBackendChecks[Scene]):
    """Tests that a backend of any layout must pass.

    Attributes:
        ragged_lengths: Lengths of prompts that share a step.
        uneven_lengths: Lengths of contexts that share a step, long ones among short ones.
        chunked_lengths: Length of a prompt, by the number of its tokens that a step computes.
        num_captured_tokens: Number of tokens in a captured step of any tokens.
    """

    ragged_lengths: ClassVar[Sequence[int]] = (1, 37, 16, 5, 64)
    uneven_lengths: ClassVar[Sequence[int]] = (3, 600, 7, 90, 1, 12, 320)
    chunked_lengths: ClassVar[Mapping[int, int]] = MappingProxyType(
        {1: 45, 2: 45, 7: 45, 16: 45, 40: 200, 200: 200}
    )
    num_captured_tokens: ClassVar[int] = 70

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize each test with the cases that the backend declares."""
        super().pytest_generate_tests(metafunc)
        if "chunk" in metafunc.fixturenames:
            metafunc.parametrize("chunk", list(self.chunked_lengths), ids=str)

    def test_the_declared_sizes_work(self, sizes: PoolSizes) -> None:
        """Run prompts of uneven lengths in one step, then three decode steps."""
        self._check_ragged(self._scene(sizes))

    def test_the_declared_types_work(self, types: tuple[str, str]) -> None:
        """Run every dtype with every KV-cache dtype."""
        scene = self._scene(self._plain().with_types(*types))
        numbers = [scene.add(30), scene.add(9)]
        self._check(scene, scene.step([(numbers[0], 29), (numbers[1], 8)]))
        self._check(scene, scene.step([(number, 1) for number in numbers]))

    def test_the_probe_returns_a_reason_or_none(self) -> None:
        """It is called in a fresh process, and must not import torch."""
        check_probe(self.capabilities.probe)

    def test_a_prompt_in_chunks_equals_the_whole(self, chunk: int) -> None:
        """Run chunked prefill: a chunk attends to the KV of earlier chunks."""
        scene = self._scene(self._plain())
        length = self.chunked_lengths[chunk]
        number = scene.add(length)
        for start in range(0, length, chunk):
            self._check(scene, scene.step([(number, min(chunk, length - start))]))

    def test_prompts_and_single_tokens_share_a_step(self) -> None:
        """Run decode rows before, between and after rows with several tokens."""
        scene = self._scene(self._plain())
        lengths = (20, 3, 47)
        a, b, c = (scene.add(length + 1) for length in lengths)
        self._check(scene, scene.step(list(zip((a, b, c), lengths, strict=True))))
        fresh, chunk, drafts = scene.add(33), scene.add(64), scene.add(30)
        self._check(scene, scene.step([(chunk, 20), (drafts, 25)]))
        self._check(
            scene, scene.step([(a, 1), (fresh, 33), (b, 1), (chunk, 44), (drafts, 5), (c, 1)])
        )

    def test_very_uneven_contexts_share_a_step(self) -> None:
        """Run long contexts beside many short ones."""
        scene = self._scene(self._plain())
        numbers = [scene.add(length + 2) for length in self.uneven_lengths]
        for number, length in zip(numbers, self.uneven_lengths, strict=True):
            scene.outputs([(number, length)])
        self._check(scene, scene.step([(number, 1) for number in numbers]))
        self._check(scene, scene.step([(number, 1) for number in reversed(numbers)]))

    def test_a_shared_prefix_is_read_from_the_other_requests_blocks(self) -> None:
        """Compute only the new tokens; the shared blocks must not change."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        donor = scene.add(2 * size + 3)
        scene.outputs([(donor, 2 * size + 3)])
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
            scene.outputs([(1, 24), (3, 8)])
            rows = scene.outputs([plan[index] for index in order])
            outputs.append([rows[order.index(index)] for index in range(4)])
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
        scene.outputs([(still, 2 * size), (moving, size)])
        before = scene.raw.clone()
        scene.outputs([(moving, size + 1)])
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
        rows = scene.inputs([(0, 20)])
        first, second = scene.params_with(0.2), scene.params_with(0.5)
        other_cache = torch.zeros_like(scene.kv_cache)
        scene.backend.forward(*rows, scene.kv_cache, metadata, first)
        before = scene.raw.clone()
        others = [*rows[:-2], -rows[-2], 2 * rows[-1]]
        out = scene.backend.forward(*others, other_cache, metadata, second)
        expected = scene.reference([tensor.double() for tensor in others], second)
        assert_close(out.cpu(), expected.cpu(), 2 * self.tolerance(scene.sizes))
        assert torch.equal(before, scene.raw), "one layer wrote to the KV cache of another"

    def test_pages_may_be_padded(self, page_padding: int) -> None:
        """The padding is neither read nor written: it may hold the KV of another layer."""
        scene = self._scene(replace(self._plain(), num_padding_rows=page_padding))
        padding = scene.raw[:, scene.page_bytes :].clone()
        self._check_ragged(scene)
        assert torch.equal(padding, scene.raw[:, scene.page_bytes :]), (
            "the padding behind a page was written to"
        )

    def test_a_write_from_outside_is_seen_after_forget_context(self) -> None:
        """Change a block between two steps, as a KV store or a block copy does."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        number, other = scene.add(size + 9), scene.add(size)
        scene.outputs([(number, size + 5), (other, size)])
        for _ in range(2):
            self._check(scene, scene.step([(number, 1)]))
        changed, source = scene.requests[number], scene.requests[other]
        scene.raw[changed.block_ids[0]] = scene.raw[source.block_ids[0]]
        scene.copy_rows(other, number, size)
        scene.backend.forget_context()
        self._check(scene, scene.step([(number, 1)]))

    def test_a_captured_step_of_single_tokens_is_replayed(self, captured: PoolSizes) -> None:
        """Replay with other requests, lengths and blocks, and with prefill steps between."""
        scene = self._scene(captured)
        lengths = (30, 3, 47, 1)
        numbers = [scene.add(length + 8) for length in lengths]
        self._check(scene, scene.step(list(zip(numbers, lengths, strict=True))))
        a, b, c, d = numbers
        step = CapturedAttentionStep(scene, NUM_REQUESTS, NUM_REQUESTS)
        self._check(scene, step.step([(a, 1), (b, 1), (c, 1), (d, 1)]))
        self._check(scene, step.step([(c, 1), (a, 1)]))
        num_late = self.num_captured_tokens + 30
        late = scene.add(num_late + 2)
        self._check(scene, scene.step([(late, num_late), (b, 1)]))
        self._check(scene, step.step([(d, 1), (late, 1), (b, 1), (a, 1), (c, 1)]))
        self._check(scene, step.step([(late, 1)]))

    def test_a_captured_step_of_any_tokens_is_replayed(self, captured_whole: PoolSizes) -> None:
        """Replay the same launches for one token per request and for all tokens in one request."""
        scene = self._scene(captured_whole)
        num_tokens = self.num_captured_tokens
        a, b, c = (scene.add(num_tokens + 5) for _ in range(3))
        step = CapturedAttentionStep(scene, NUM_REQUESTS, num_tokens)
        self._check(scene, step.step([(a, num_tokens // 4), (b, num_tokens // 2), (c, 3)]))
        self._check(scene, step.step([(c, 1), (b, 1), (a, 1)]))
        self._check(scene, step.step([(c, num_tokens)]))
        self._check(scene, step.step([(b, 5), (a, num_tokens // 2), (c, 1)]))

    def _check_ragged(self, scene: KVBackendScene) -> None:
        numbers = [scene.add(length + 3) for length in self.ragged_lengths]
        plan = list(zip(numbers, self.ragged_lengths, strict=True))
        self._check(scene, scene.step(plan))
        for _ in range(3):
            self._check(scene, scene.step([(number, 1) for number in numbers]))
