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
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from quire.interfaces.attention import AttentionBackend, AttentionLayerParams
from quire.testing.attention.attention_cases import DeclaredCases
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SCALE, SceneSizes
from quire.testing.attention.attention_truth import kv_round_trip, reference_attention
from quire.testing.kv_backend.kv_backend_checks import assert_close
from quire.testing.kv_backend.kv_backend_contract import KVBackendContract
from quire.testing.kv_backend.pool_sizes import Padding

INVARIANT_LENGTH = 150  # longer than 128, where a backend may split the context
SINGLE_TOKENS = (1, 1, 124, 1, 1, 1, 1, 20)  # single tokens at the start and around 128


class AttentionBackendContract(KVBackendContract[AttentionScene]):
    """Tests that an attention backend must pass.

    Attributes:
        backend_class: Backend under test.
        capabilities: Capabilities that the backend is registered with.
        device: Device of the tests; the backend must declare it.
        num_cases: Largest number of cases of each kind; None for all declared cases.
    """

    backend_class: ClassVar[type[AttentionBackend]]
    scene_class = AttentionScene

    def test_windows_hide_what_lies_before(self, window: int) -> None:
        """Test prompts, single tokens, and both in one step."""
        self._check_bounds(replace(self._plain(), window=window))

    def test_chunks_hide_what_lies_before(self, chunk_size: int) -> None:
        """A query sees its own attention chunk only, wherever a step ends."""
        self._check_bounds(replace(self._plain(), chunk=chunk_size))

    @pytest.mark.parametrize("is_reused", [False, True], ids=["null block", "others' blocks"])
    def test_what_no_query_sees_is_never_read(self, bounds: SceneSizes, is_reused: bool) -> None:
        """Fill freed blocks, unused slots and the null block with NaN, which no mask can hide."""
        scene = self._scene(bounds)
        long, short, fresh = scene.add(150), scene.add(40), scene.add(70)
        self._check(scene, scene.step([(long, 90), (short, 4)], Padding(1, 3)))
        steps = (
            [(long, 1), (short, 17)],  # a single token, a chunk
            [(fresh, 50), (long, 1), (short, 1)],  # a prompt, two single tokens
            [(long, 1), (short, 1), (fresh, 1)],
            [(long, 1), (short, 1), (fresh, 1)],
            [(short, 1), (long, 3), (fresh, 9)],
        )
        for plan in steps:
            for number, _ in plan:
                scene.free_unseen_blocks(number, is_reused=is_reused)
            self._check(scene, scene.step(plan, Padding(1, 3)))

    def test_scores_are_capped(self, soft_cap: float) -> None:
        """Test the soft cap, which is applied to the scaled scores before the mask."""
        scene = self._scene(replace(self._plain(), soft_cap=soft_cap))
        scene.add(50)
        scene.add(9)
        self._check(scene, scene.step([(0, 48), (1, 7)]))
        self._check(scene, scene.step([(0, 1), (1, 1)]))

    def test_sinks_enter_the_softmax(self, sinks: SceneSizes) -> None:
        """Test the sink of each query head: one more logit, without a value."""
        self._check_ragged(self._scene(sinks))

    def test_scores_have_a_bias_by_distance(self, alibi: SceneSizes) -> None:
        """Test linear biases: each query head's slope times the distance of a key."""
        self._check_ragged(self._scene(alibi))

    def test_each_layer_has_its_own_scales(self, scaled_dtype: str) -> None:
        """Test two layers of one step that store K and V with different scales."""
        scene = self._scene(replace(self._plain(), kv_dtype=scaled_dtype))
        scene.add(20)
        metadata = scene.backend.prepare(scene.layout([(0, 20)], Padding()))
        q, k, v = scene.inputs([(0, 20)])
        for k_scale, v_scale in ((0.25, 4.0), (8.0, 0.125)):
            layer = AttentionLayerParams(SCALE, k_scale=k_scale, v_scale=v_scale)
            cache = torch.zeros_like(scene.raw[:, : scene.page_bytes])
            view = scene.backend.kv_view(cache.view(-1), scene.spec, len(cache))
            out = scene.backend.forward(q, k, v, view, metadata, layer)
            expected = reference_attention(
                q.double().cpu(),
                kv_round_trip(k.cpu(), scaled_dtype, k_scale),
                kv_round_trip(v.cpu(), scaled_dtype, v_scale),
                layer,
            )
            assert_close(out.cpu(), expected, self.tolerance(scene.sizes))

    def test_layers_may_share_a_cache(self) -> None:
        """Run two layers of each step: the second writes the same K and V, with other queries."""
        scene = self._scene(self._plain())
        a, b = scene.add(12), scene.add(40)
        for plan in ([(a, 5), (b, 33)], [(a, 1), (b, 1)], [(b, 1), (a, 1)], [(a, 4), (b, 1)]):
            metadata = scene.backend.prepare(scene.layout(plan, Padding()))
            q, *kv = scene.inputs(plan)
            rest = (*kv, scene.kv_cache, metadata, scene.params)
            layers = [scene.backend.forward(queries, *rest) for queries in (q, -q)]
            outputs = scene.finish_step(plan, torch.stack(layers, 1))
            for index in range(len(layers)):
                own = [output[:, index] for output in outputs]
                self._check(scene, scene.with_expected(plan, own))
                for request in scene.requests:
                    request.rows[0].neg_()

    def test_heads_are_normed_and_rotated_before_they_are_stored(self, rotary: SceneSizes) -> None:
        """Test `forward_rotary`: norm, rotary embedding, KV write and attention, with padding."""
        scene = self._scene(rotary)
        a, b, c = (scene.add(length) for length in (40, 9, 25))
        self._check(scene, scene.step([(a, 30), (b, 8)], Padding(1, 2)))
        self._check(scene, scene.step([(c, 17), (a, 1), (b, 1)]))
        self._check(scene, scene.step([(a, 1), (c, 8)], Padding(2, 3)))

    def test_batch_invariant_outputs_are_bit_identical(self, invariant: SceneSizes) -> None:
        """Compare a request alone and whole with the same request in other batches and chunks."""
        alone = self._outputs(invariant, (INVARIANT_LENGTH,), ())
        for chunks, others in (
            (SINGLE_TOKENS, ()),
            (SINGLE_TOKENS, (5, 90, 200)),
            ((3, 1, 60, 1, 59, 26), ()),
            ((40, 40, 40, 30), (1, 64, 7, 128, 2, 33)),
            ((128, 1, 21), (20,)),
        ):
            outputs = self._outputs(invariant, chunks, others)
            assert torch.equal(outputs, alone), (
                f"in chunks of {chunks}, beside requests of {others} tokens, the output differs "
                "from that of the request alone, and batch_invariant is declared"
            )

    def _cases(self) -> DeclaredCases:
        return DeclaredCases(self.capabilities, self.device, self.backend_class.fuses_rotary)

    def _plain(self) -> SceneSizes:
        return self._cases().plain

    def _outputs(
        self, sizes: SceneSizes, chunks: Sequence[int], others: Sequence[int]
    ) -> Tensor:  # [L, H, D]
        """Return all outputs of one request, computed in chunks beside other requests."""
        scene = self._scene(sizes)
        number = scene.add(INVARIANT_LENGTH)
        beside = [scene.add(length + INVARIANT_LENGTH) for length in others]
        if beside:
            scene.outputs(list(zip(beside, others, strict=True)))
        outputs = []
        for index, chunk in enumerate(chunks):
            row = index % (len(beside) + 1)
            plan = [(other, 1) for other in beside]
            plan.insert(row, (number, chunk))
            outputs.append(scene.outputs(plan)[row])
        return torch.cat(outputs)

    def _check_bounds(self, sizes: SceneSizes) -> None:
        scene = self._scene(sizes)
        numbers = [scene.add(length + 20) for length in (50, 4, 31)]
        self._check(scene, scene.step([(0, 50), (1, 4), (2, 31)]))
        self._check(scene, scene.step([(0, 1), (1, 17), (2, 1)]))
        self._check(scene, scene.step([(number, 1) for number in numbers]))
