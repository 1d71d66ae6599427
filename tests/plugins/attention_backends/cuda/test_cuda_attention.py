"""The decode kernels of the cuda backend are right: the same source, with threads as fibers.

The source is compiled by `g++` and runs on the CPU. A GPU runs the conformance kit on the real
kernels.
"""

from dataclasses import replace

import pytest
import torch
from cuda_emulated import HAS_COMPILER, EmulatedBackend
from filled_scene import filled

from quire.errors import RefusedError
from quire.interfaces.attention import AttentionShape
from quire.plugins.loading import load_plugins
from quire.testing.attention import AttentionBackendContract
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.attention.attention_truth import reference_attention
from quire.testing.kv_backend.captured_step import CapturedAttentionStep
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.cuda.cuda_attention import CudaBackend
from quire_attention_backends.cuda.cuda_decode import DecodeVariant
from quire_attention_backends.shared.attention_bounds import AttentionBounds

DECLARED = load_plugins().registries.attention_backends.entry("cuda").capabilities
HEAD_DIMS = sorted(DECLARED.head_dims)
GROUPS = ((2, 2), (4, 2), (6, 2), (8, 1), (20, 1))  # each is another variant
LENGTHS = (1, 37, 16, 5, 64, 200)
LIMITS = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}

needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="there is no g++")


def check(pairs, limit=2e-5):
    for output, expected in pairs:
        torch.testing.assert_close(output.double(), expected, atol=limit, rtol=0)


def decode(lengths=LENGTHS, padding=None, steps=1, limit=2e-5, **changes):
    """Decode one token for requests of these lengths, and compare with the reference."""
    scene, numbers = filled(EmulatedBackend, SceneSizes(**changes), lengths)
    for _ in range(steps):
        check(scene.step([(number, 1) for number in numbers], padding), limit)


@needs_compiler
class TestDecode:
    @pytest.mark.parametrize("head_dim", HEAD_DIMS)
    def test_every_head_size_is_right(self, head_dim):
        decode(head_dim=head_dim)

    @pytest.mark.parametrize(("num_heads", "num_kv_heads"), GROUPS)
    def test_every_number_of_heads_that_share_k_and_v_is_right(self, num_heads, num_kv_heads):
        decode(num_heads=num_heads, num_kv_heads=num_kv_heads)

    @pytest.mark.slow
    @pytest.mark.parametrize("kv_dtype", sorted(DECLARED.kv_dtypes))
    @pytest.mark.parametrize("dtype", sorted(DECLARED.dtypes))
    @pytest.mark.parametrize("head_dim", HEAD_DIMS)
    @pytest.mark.parametrize(("num_heads", "num_kv_heads"), GROUPS)
    def test_every_variant_is_right(self, num_heads, num_kv_heads, head_dim, dtype, kv_dtype):
        limit = max(LIMITS[dtype], LIMITS.get(kv_dtype, 0.0))
        sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
        decode((37, 300), dtype=dtype, kv_dtype=kv_dtype, limit=limit, **sizes)

    @pytest.mark.parametrize("kv_dtype", sorted(DECLARED.kv_dtypes))
    @pytest.mark.parametrize("dtype", sorted(DECLARED.dtypes))
    def test_every_type_is_right_with_every_type_of_the_cache(self, dtype, kv_dtype):
        limit = max(LIMITS[dtype], LIMITS.get(kv_dtype, 0.0))
        decode(head_dim=128, dtype=dtype, kv_dtype=kv_dtype, limit=limit)

    def test_float8_has_a_scale_for_k_and_another_for_v(self):
        decode(kv_dtype="float8_e4m3fn", k_scale=0.5, v_scale=0.25)

    @pytest.mark.parametrize("block_size", sorted(DECLARED.block_sizes))
    def test_every_block_size_is_right(self, block_size):
        decode(block_size=block_size, steps=3)

    @pytest.mark.parametrize("num_padding_rows", [1, 7])
    def test_pages_may_lie_apart(self, num_padding_rows):
        decode(num_padding_rows=num_padding_rows)

    @pytest.mark.parametrize("bounds", [{"window": n} for n in (1, 5, 16, 33, 150)]
                             + [{"chunk": n} for n in (1, 7, 64)], ids=str)  # fmt: skip
    @pytest.mark.parametrize("is_reused", [False, True])
    def test_what_a_window_or_a_chunk_hides_is_not_read(self, bounds, is_reused):
        lengths = (1, 37, 200, 430)
        scene, numbers = filled(EmulatedBackend, SceneSizes(**bounds), lengths)
        for _ in range(2):
            for number in numbers:
                scene.free_unseen_blocks(number, is_reused=is_reused)
            check(scene.step([(number, 1) for number in numbers]))

    @pytest.mark.parametrize("soft_cap", [2.0, 30.0])
    def test_scores_are_capped(self, soft_cap):
        decode(soft_cap=soft_cap)

    @pytest.mark.parametrize("features", [{}, {"soft_cap": 3.0, "window": 70}], ids=str)
    def test_sinks_enter_the_softmax(self, features):
        decode((1, 37, 600), has_sinks=True, num_heads=6, **features)

    def test_scores_may_be_large_and_of_either_sign(self):
        scene, numbers = filled(EmulatedBackend, SceneSizes(), (40, 500))
        for number in numbers:
            scene.requests[number].rows[0].mul_(300.0)
        check(scene.step([(number, 1) for number in numbers]), 2e-4)

    @pytest.mark.parametrize("rotary", ["plain", "normed"])
    def test_heads_are_rotated_before_they_are_written(self, rotary):
        decode((1, 37, 200), rotary=rotary, limit=1e-4)

    def test_heads_that_are_not_aligned_to_vectors_are_copied(self):
        scene, numbers = filled(EmulatedBackend, SceneSizes(), (37, 5))
        plan = [(number, 1) for number in numbers]
        layout, (q, k, v) = scene.layout(plan, Padding()), scene.inputs(plan)
        wide = torch.zeros(len(q), q.shape[1], q.shape[2] + 1)
        wide[:, :, 1:] = q
        out = scene.attend(layout, (wide[:, :, 1:], k, v), None)
        outputs = scene.finish_step(plan, out)
        check([(a, scene.expected(number, 1)) for a, number in zip(outputs, numbers, strict=True)])


@needs_compiler
class TestSplits:
    def parts_of(self, scene, plan):
        metadata = scene.backend.prepare(scene.layout(plan, Padding()))
        return scene.backend._plan(metadata, AttentionBounds()).parts[:, 1].tolist()

    def test_a_long_context_is_cut_and_short_ones_are_not(self):
        scene, numbers = filled(EmulatedBackend, SceneSizes(), [3] * 4 + [900] + [3] * 4)
        plan = [(number, 1) for number in numbers]
        parts = self.parts_of(scene, plan)
        assert parts[4] > 4
        assert not any(parts[:4] + parts[5:])
        check(scene.step(plan))

    def test_a_part_may_be_longer_than_a_chunk_of_keys(self):
        sizes = SceneSizes(num_heads=8, num_kv_heads=8)
        scene, numbers = filled(EmulatedBackend, sizes, [700, 700])
        plan = [(number, 1) for number in numbers]
        assert not any(self.parts_of(scene, plan))
        check(scene.step(plan))

    def test_more_rows_than_a_block_each_is_worth_are_combined_by_group(self, monkeypatch):
        monkeypatch.setattr("quire_attention_backends.cuda.cuda_attention.FEW_BLOCKS", 1)
        decode((3, 900), num_heads=6)


@pytest.fixture
def nan_in_new_memory():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@needs_compiler
class TestPadding:
    @pytest.mark.parametrize("padding", [Padding(0, 3), Padding(2, 2), Padding(3, 1)], ids=str)
    def test_the_output_of_padding_is_zero(self, padding, nan_in_new_memory):
        scene, numbers = filled(EmulatedBackend, SceneSizes(), (30, 500))
        plan = [(number, 1) for number in numbers]
        layout, heads = scene.layout(plan, padding), scene.inputs(plan, padding.num_tokens)
        out = scene.attend(layout, heads, None)
        assert not out[len(plan) :].any()
        outputs = scene.finish_step(plan, out)
        check([(a, scene.expected(number, 1)) for a, number in zip(outputs, numbers, strict=True)])

    def test_a_step_without_tokens_is_empty(self):
        scene, numbers = filled(EmulatedBackend, SceneSizes(), (30,))
        layout = scene.layout([(numbers[0], 1)], Padding())
        q, k, v = (heads[:0] for heads in scene.inputs([(numbers[0], 1)]))
        layout.slot_mapping = layout.slot_mapping[:0]
        assert scene.attend(layout, (q, k, v), None).shape == q.shape

    def test_a_replayed_step_splits_by_its_new_lengths(self):
        scene, (a, b, c) = filled(EmulatedBackend, SceneSizes(), (150, 40, 5), num_more=8)
        step = CapturedAttentionStep(scene, 4, 4)
        check(step.step([(b, 1), (c, 1)]))
        check(step.step([(a, 1), (b, 1), (c, 1)]))
        check(step.step([(c, 1)]))


@needs_compiler
def test_steps_with_more_tokens_are_right_too():
    scene, (a, b) = filled(EmulatedBackend, SceneSizes(), (20, 3))
    fresh = scene.add(20)
    check(scene.step([(a, 1), (fresh, 18), (b, 2)]))
    check(scene.step([(a, 1), (fresh, 1), (b, 1)]))


@needs_compiler
def test_layers_of_a_step_share_its_plan_and_not_their_caches():
    scene, (number,) = filled(EmulatedBackend, SceneSizes(), (30,))
    layout, (q, k, v) = scene.layout([(number, 1)], Padding()), scene.inputs([(number, 1)])
    metadata, params = scene.backend.prepare(layout), scene.sizes.params
    other = torch.zeros_like(scene.kv_cache)
    other[:] = torch.where(scene.kv_cache.isnan(), scene.kv_cache, -scene.kv_cache)
    scene.backend.forward(q, k, v, scene.kv_cache, metadata, params)
    out = scene.backend.forward(q, -k, -v, other, metadata, replace(params, scale=0.7))
    q, k, v = (rows[:31].double() for rows in scene.requests[number].rows)
    expected = reference_attention(q[30:], -k, -v, replace(params, scale=0.7))
    check([(out, expected)])


@needs_compiler
def test_the_workspace_is_what_is_allocated():
    shape = shape_of()
    backend = EmulatedBackend(shape)
    both = backend._scratch, backend._fallback._scratch
    num_bytes = sum(scratch.acc.nbytes + scratch.stats.nbytes for scratch in both)
    assert EmulatedBackend.workspace_bytes(shape) == num_bytes


def test_pages_that_are_not_aligned_to_vectors_are_refused():
    sizes = SceneSizes(num_kv_heads=2)
    spec = sizes.spec
    raw = torch.zeros(3 * spec.page_bytes + 4, dtype=torch.uint8)[4:]
    with pytest.raises(RefusedError, match=r"needs an alignment of 16 bytes.*pages of scene"):
        CudaBackend.kv_view(raw, spec, 3)
    spec = SceneSizes(num_kv_heads=2, head_dim=2).spec
    padded = torch.zeros(3, spec.page_bytes + 8, dtype=torch.uint8)[:, : spec.page_bytes]
    with pytest.raises(RefusedError, match=f"a stride of {spec.page_bytes + 8} bytes"):
        CudaBackend.kv_view(padded, spec, 3)


class NotedKernels:
    """Notes the names of the kernels that are launched, and computes nothing."""

    def __init__(self):
        self.names = []

    def launch(self, name, grid, step):
        self.names.append(name)


class NotingBackend(CudaBackend):
    def __init__(self, shape):
        super().__init__(shape, NotedKernels())


def test_only_a_step_of_single_tokens_is_decode():
    scene, (a, b) = filled(NotingBackend, SceneSizes(), (5, 3))
    scene.outputs([(a, 1), (b, 2)])
    assert not scene.backend._kernels.names
    scene.outputs([(a, 1), (b, 1)])
    assert scene.backend._kernels.names == ["paged_decode", "combine"]


@pytest.mark.parametrize(
    ("group", "tile_heads", "head_warps"),
    [(1, 1, 1), (2, 2, 1), (3, 4, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (9, 4, 4), (71, 4, 4)],
)
def test_a_variant_is_chosen_by_the_heads_that_share_k_and_v(group, tile_heads, head_warps):
    variant = DecodeVariant.of(shape_of(num_heads=2 * group))
    assert (variant.tile_heads, variant.head_warps) == (tile_heads, head_warps)
    assert set(variant.macros) == {"QUERY", "STORED", "HEAD_DIM", "TILE_HEADS", "HEAD_WARPS"}


def shape_of(**changes):
    shape = AttentionShape(
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        block_size=16,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_blocks_per_request=64,
        dtype=torch.float32,
        kv_dtype="float32",
        device=torch.device("cpu"),
    )
    return replace(shape, **changes)


@pytest.mark.slow
@needs_compiler
class TestTheWholeKit(AttentionBackendContract):
    """All checks of the kit, for a few variants."""

    backend_class = EmulatedBackend
    capabilities = replace(
        DECLARED,
        devices=frozenset({"cpu"}),
        head_dims=frozenset({64, 80}),
        block_sizes=frozenset({16, 128}),
        dtypes=frozenset({"float32"}),
        kv_dtypes=frozenset({"float32", "float8_e4m3fn"}),
    )
