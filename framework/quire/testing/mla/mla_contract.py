"""Contract of latent-attention (MLA) backends: every declared capability is tested.

Write a test class for your backend; pytest collects the inherited tests:

    class TestMine(MLABackendContract):
        backend_class = MyBackend
        capabilities = MY_CAPABILITIES

All outputs are compared with a plain float64 reference. KV-cache dtypes other than float32,
bfloat16 and float16, and batch invariance, are not covered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from quire.interfaces.attention import AttentionCapabilities, AttentionQuery
from quire.interfaces.mla import MLABackend
from quire.testing.attention.attention_checks import assert_close
from quire.testing.attention.attention_sizes import Padding
from quire.testing.mla.mla_graphs import CapturedMLAStep
from quire.testing.mla.mla_scene import DTYPES, SCALE, MLAScene, MLASizes, reference_mla

ROWS = ((32, 16), (64, 16), (128, 32))  # latent_dim, rope_dim
BLOCK_SIZES = (1, 16, 64)
NUM_HEADS = (1, 4, 20)
TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
RAGGED = (1, 19, 16, 5, 34)


class MLABackendContract:
    """Tests that a backend of latent attention must pass.

    Attributes:
        backend_class: Backend under test.
        capabilities: Capabilities that the backend is registered with.
        device: Device of the tests; the backend must declare it.
        rows: Pairs of latent_dim and rope_dim that the backend supports; most tests use the first.
        num_heads: Numbers of query heads to try.
        tolerances: Largest absolute error allowed, by dtype; the coarser of dtype and KV-cache
            dtype counts.
    """

    backend_class: ClassVar[type[MLABackend]]
    capabilities: ClassVar[AttentionCapabilities]
    device: ClassVar[str] = "cpu"
    rows: ClassVar[Sequence[tuple[int, int]]] = ROWS
    num_heads: ClassVar[Sequence[int]] = NUM_HEADS
    tolerances: ClassVar[Mapping[str, float]] = TOLERANCES

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize each test with the cases that the backend declares."""
        cases: dict[str, Sequence[object]] = {
            "sizes": list(self._declared_sizes()),
            "types": list(self._declared_types()),
            "page_padding": (1, 7) if self.capabilities.padded_pages else (),
            "captured": () if self.capabilities.graphs == "none" else (True,),
            "captured_whole": (True,) if self.capabilities.graphs == "full" else (),
        }
        for name in set(cases) & set(metafunc.fixturenames):
            metafunc.parametrize(name, cases[name], ids=_case_name)

    def test_it_declares_the_layout(self) -> None:
        """Check that the backend is selected for MLA layers and for no others."""
        layouts = sorted(self.capabilities.layouts)
        assert layouts == ["mla"], (
            f"an MLA backend must declare layouts=['mla'] and no other, got {layouts}"
        )

    def test_the_declared_sizes_work(self, sizes: MLASizes) -> None:
        """Run prompts of uneven lengths in one step, then two decode steps."""
        scene = self._scene(sizes)
        numbers = [scene.add(length + 2) for length in RAGGED]
        self._check(scene.step(list(zip(numbers, RAGGED, strict=True))))
        for _ in range(2):
            self._check(scene.step([(number, 1) for number in numbers]))

    def test_the_declared_types_work(self, types: tuple[str, str]) -> None:
        """Run every dtype with every KV-cache dtype."""
        dtype, kv_dtype = types
        scene = self._scene(replace(self._plain(), dtype=dtype, kv_dtype=kv_dtype))
        numbers = [scene.add(30), scene.add(9)]
        tolerance = max(self.tolerances[dtype], self.tolerances[kv_dtype])
        self._check(scene.step([(numbers[0], 29), (numbers[1], 8)]), tolerance)
        self._check(scene.step([(number, 1) for number in numbers]), tolerance)

    @pytest.mark.parametrize("chunk", [1, 7, 16])
    def test_a_prompt_in_chunks_equals_the_whole(self, chunk: int) -> None:
        """Run chunked prefill: a chunk attends to the KV of earlier chunks."""
        scene = self._scene(self._plain())
        number = scene.add(21)
        for start in range(0, 21, chunk):
            self._check(scene.step([(number, min(chunk, 21 - start))]))

    def test_prompts_and_single_tokens_share_a_step(self) -> None:
        """Run decode rows before, between and after rows with several tokens."""
        scene = self._scene(self._plain())
        lengths = (20, 3, 31)
        a, b, c = (scene.add(length + 1) for length in lengths)
        self._check(scene.step(list(zip((a, b, c), lengths, strict=True))))
        fresh, chunk = scene.add(18), scene.add(40)
        self._check(scene.step([(chunk, 20)]))
        self._check(scene.step([(a, 1), (fresh, 18), (b, 1), (chunk, 20), (c, 1)]))

    def test_very_uneven_contexts_share_a_step(self) -> None:
        """Run one long context beside many short ones."""
        scene = self._scene(self._plain())
        lengths = (3, 130, 7, 40, 1)
        numbers = [scene.add(length + 2) for length in lengths]
        for number, length in zip(numbers, lengths, strict=True):
            scene.step([(number, length)])
        self._check(scene.step([(number, 1) for number in numbers]))
        self._check(scene.step([(number, 1) for number in reversed(numbers)]))

    def test_a_shared_prefix_is_read_from_the_other_requests_blocks(self) -> None:
        """Compute only the new tokens; the shared blocks must not change."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        donor = scene.add(2 * size + 3)
        scene.step([(donor, 2 * size + 3)])
        guest = scene.add_with_prefix_of(donor, 2, 2 * size + 9)
        before = scene.raw[scene.requests[donor].block_ids].clone()
        self._check(scene.step([(guest, 8)]))
        self._check(scene.step([(guest, 1)]))
        assert torch.equal(before, scene.raw[scene.requests[donor].block_ids]), (
            "a step of one request changed KV blocks of another: write only to slot_mapping"
        )

    @pytest.mark.parametrize("padding", [Padding(0, 3), Padding(2, 2)], ids=["tokens", "requests"])
    def test_padding_writes_to_the_null_block_only(self, padding: Padding) -> None:
        """Padding rows change no output and no block but the null block."""
        scene = self._scene(self._plain())
        first, second = scene.add(30), scene.add(12)
        self._check(scene.step([(first, 20), (second, 11)], padding))
        before = scene.raw.clone()
        self._check(scene.step([(first, 1), (second, 1)], padding))
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
        q_latent, q_rope, latent, k_rope = scene.inputs([(0, 20)])
        other_cache = torch.zeros_like(scene.kv_cache)
        scene.backend.forward(q_latent, q_rope, latent, k_rope, scene.kv_cache, metadata, SCALE)
        before = scene.raw.clone()
        rows = (q_latent, q_rope, -latent, 2 * k_rope)
        out = scene.backend.forward(*rows, other_cache, metadata, 0.1)
        expected = reference_mla(
            q_latent.double(), q_rope.double(), -latent.double(), 2 * k_rope.double(), 0.1
        )
        self._check([(out.cpu(), expected.cpu())])
        assert torch.equal(before, scene.raw), "one layer wrote to the KV cache of another"

    def test_a_layer_may_pass_views_of_larger_tensors(self) -> None:
        """Pass non-contiguous inputs: heads first, or latent and rotary key in one tensor."""
        scene = self._scene(self._plain())
        scene.add(9)
        metadata = scene.backend.prepare(scene.layout([(0, 9)], Padding()))
        q_latent, q_rope, latent, k_rope = scene.inputs([(0, 9)])
        by_head = q_latent.transpose(0, 1).contiguous().transpose(0, 1)  # [T, H, C]
        joined, dim = torch.cat((latent, k_rope), 1), latent.shape[1]
        out = scene.backend.forward(
            by_head, q_rope, joined[:, :dim], joined[:, dim:], scene.kv_cache, metadata, SCALE
        )
        scene.requests[0].num_computed = 9
        self._check([(out.cpu(), scene.expected(0, 9))])

    def test_pages_may_be_padded(self, page_padding: int) -> None:
        """The padding is neither read nor written: it may hold the KV of another layer."""
        scene = self._scene(replace(self._plain(), num_padding_rows=page_padding))
        padding = scene.raw[:, scene.page_bytes :].clone()
        numbers = [scene.add(length + 1) for length in RAGGED]
        self._check(scene.step(list(zip(numbers, RAGGED, strict=True))))
        self._check(scene.step([(number, 1) for number in numbers]))
        assert torch.equal(padding, scene.raw[:, scene.page_bytes :]), (
            "the padding behind a page was written to"
        )

    def test_a_write_from_outside_is_seen_after_forget_context(self) -> None:
        """Change a block between two steps, as a KV store or a block copy does."""
        scene = self._scene(self._plain())
        size = scene.sizes.block_size
        number, other = scene.add(size + 9), scene.add(size)
        scene.step([(number, size + 5), (other, size)])
        self._check(scene.step([(number, 1)]))
        changed, source = scene.requests[number], scene.requests[other]
        scene.raw[changed.block_ids[0]] = scene.raw[source.block_ids[0]]
        changed.latent[:size], changed.k_rope[:size] = source.latent[:size], source.k_rope[:size]
        scene.backend.forget_context()
        self._check(scene.step([(number, 1)]))

    def test_a_captured_step_of_single_tokens_is_replayed(self, captured: bool) -> None:
        """Replay with other requests, lengths and blocks, and with a prefill step between."""
        del captured
        scene = self._scene(self._plain())
        a, b, c = (scene.add(length + 4) for length in (30, 3, 17))
        self._check(scene.step([(a, 30), (b, 3), (c, 17)]))
        step = CapturedMLAStep(scene, 4, 4)
        self._check(step.step([(a, 1), (b, 1), (c, 1)]))
        self._check(step.step([(c, 1), (a, 1)]))
        late = scene.add(50)
        self._check(scene.step([(late, 47), (b, 1)]))
        self._check(step.step([(late, 1), (b, 1), (a, 1), (c, 1)]))

    def test_a_captured_step_of_any_tokens_is_replayed(self, captured_whole: bool) -> None:
        """Replay the same launches for one token per request and for all tokens in one request."""
        del captured_whole
        scene = self._scene(self._plain())
        a, b = scene.add(40), scene.add(41)
        step = CapturedMLAStep(scene, 4, 24)
        self._check(step.step([(a, 8), (b, 11)]))
        self._check(step.step([(b, 1), (a, 1)]))
        self._check(step.step([(b, 24)]))

    def _scene(self, sizes: MLASizes) -> MLAScene:
        """Build a scene, after a check that the declared capabilities allow it."""
        query = AttentionQuery(
            device=sizes.device,
            dtype=sizes.dtype,
            kv_dtype=sizes.kv_dtype,
            num_heads=sizes.num_heads,
            num_kv_heads=1,
            head_dim=sizes.latent_dim + sizes.rope_dim,
            block_size=sizes.block_size,
            layout="mla",
            latent_dim=sizes.latent_dim,
        )
        reason = self.capabilities.refusal(query)
        assert reason is None, f"the kit built a case that the capabilities refuse: {reason}"
        return MLAScene(self.backend_class, sizes)

    def _plain(self) -> MLASizes:
        """Return one set of sizes that the backend declares."""
        return next(iter(self._declared_sizes()))

    def _declared_sizes(self) -> Iterator[MLASizes]:
        declared = self.capabilities
        sizes = sorted(declared.block_sizes or BLOCK_SIZES, key=lambda s: (s != 16, s))
        dtype, kv_dtype = next(iter(self._declared_types()))
        base = MLASizes(
            num_heads=4,
            latent_dim=self.rows[0][0],
            rope_dim=self.rows[0][1],
            block_size=sizes[0],
            dtype=dtype,
            kv_dtype=kv_dtype,
            device=self.device,
        )
        yield base
        for latent_dim, rope_dim in self.rows[1:]:
            yield replace(base, latent_dim=latent_dim, rope_dim=rope_dim)
        for block_size in sizes[1:]:
            yield replace(base, block_size=block_size)
        for num_heads in self.num_heads:
            if num_heads != base.num_heads:
                yield replace(base, num_heads=num_heads)

    def _declared_types(self) -> Iterator[tuple[str, str]]:
        order = list(DTYPES)  # float32 first: the closest to the reference
        dtypes = sorted(self.capabilities.dtypes & set(order), key=order.index)
        kv_dtypes = sorted(self.capabilities.kv_dtypes & set(order), key=order.index)
        yield from itertools.product(dtypes, kv_dtypes)

    def _check(
        self, pairs: Sequence[tuple[Tensor, Tensor]], tolerance: float | None = None
    ) -> None:
        plain = self._plain()
        limit = tolerance or max(self.tolerances[plain.dtype], self.tolerances[plain.kv_dtype])
        for index, (output, expected) in enumerate(pairs):
            assert_close(output, expected, limit, f"row {index} of the step")

    def _check_writes(
        self, scene: MLAScene, before: Tensor, written: Sequence[tuple[int, int]]
    ) -> None:
        """Check that only the blocks of the written tokens, and the null block, have changed."""
        changed = (scene.raw != before).any(1).nonzero().flatten().tolist()
        size = scene.sizes.block_size
        allowed = {scene.requests[n].block_ids[position // size] for n, position in written}
        stray = sorted(set(changed) - allowed - {0})
        assert not stray, f"the step wrote to blocks {stray}, where it has no new tokens"


def _case_name(value: object) -> str:
    if isinstance(value, MLASizes):
        return f"H{value.num_heads}-C{value.latent_dim}-P{value.rope_dim}-S{value.block_size}"
    return "-".join(value) if isinstance(value, tuple) else str(value)
