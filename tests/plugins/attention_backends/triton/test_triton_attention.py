"""The Triton backend passes the conformance kit, in the interpreter if there is no GPU."""

from dataclasses import replace
from types import MappingProxyType

import attention_launches
import filled_scene
import kernel_device
import pytest
import torch
from dry_launch import SHARED_BYTES, compiled_in_child

from quire.interfaces.attention import AttentionLayerParams, AttentionShape
from quire.plugins.loading import load_plugins
from quire.testing.attention import AttentionBackendContract
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import ROTARY_TOLERANCES, SceneSizes
from quire.testing.kv_backend.captured_step import CapturedAttentionStep
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.shared import split_plan
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.triton.triton_attention import TritonBackend

ENTRY = load_plugins().registries.attention_backends.entry("triton")
DEVICE = kernel_device.DEVICE.type


class TritonContract(AttentionBackendContract):
    backend_class = TritonBackend
    capabilities = ENTRY.capabilities
    device = DEVICE

    def tolerance(self, sizes):
        """The interpreter truncates bfloat16 where a GPU rounds; the last stored bit may differ."""
        is_cut = DEVICE == "cpu" and sizes.kv_dtype == "bfloat16" != sizes.dtype
        return max(super().tolerance(sizes), ROTARY_TOLERANCES["bfloat16"] if is_cut else 0.0)


class TestTriton(TritonContract):
    """A few cases of each kind; all of them take minutes in the interpreter."""

    num_cases = 2
    # Single tokens, a few at a time, prompts of less than a tile and of more than a block.
    chunked_lengths = MappingProxyType({1: 7, 2: 12, 7: 37, 40: 80})

    def test_the_declared_sizes_work(self, sizes):
        """Heads in groups of three, so that a block of rows has 21 queries, in pages of 64."""
        if sizes.num_heads // sizes.num_kv_heads == 3:  # the others are everywhere below
            scene = self._scene(sizes)
            numbers = [scene.add(length + 1) for length in (1, 24, 64)]
            self._check(scene, scene.step(list(zip(numbers, (1, 24, 64), strict=True))))
            self._check(scene, scene.step([(number, 1) for number in numbers]))

    @pytest.mark.slow  # `test_one_long_request_is_split_beside_sixteen_short_ones` is quicker
    def test_very_uneven_contexts_share_a_step(self):
        super().test_very_uneven_contexts_share_a_step()

    @pytest.mark.slow  # `test_rows_across_fixed_splits_have_the_same_bits...` is quicker
    def test_batch_invariant_outputs_are_bit_identical(self, invariant):
        super().test_batch_invariant_outputs_are_bit_identical(invariant)


@pytest.fixture
def few_programs(monkeypatch):
    """Split for sixteen programs on every device; with more, every request would be divided."""
    monkeypatch.setattr(split_plan, "num_programs", lambda *sizes: 16)


@pytest.mark.slow
class TestAllThatTritonDeclares(TritonContract):
    pass


def sizes(**changes):
    return SceneSizes(device=DEVICE, **changes)


def filled(lengths, num_more=4, **changes):
    """Return a scene whose requests have `lengths` tokens in the cache, written directly."""
    return filled_scene.filled(TritonBackend, sizes(**changes), lengths, num_more)


def check(pairs, limit=2e-5):
    for output, expected in pairs:
        torch.testing.assert_close(output.double(), expected, atol=limit, rtol=0)


def parts_of(scene, plan, bounds=None):
    """Return the number of partial outputs of each request of a step."""
    metadata = scene.backend.prepare(scene.layout(plan, Padding()))
    return scene.backend._plan(metadata, bounds or AttentionBounds()).parts[:, 1].tolist()


@pytest.mark.usefixtures("few_programs")
def test_one_long_request_is_split_beside_sixteen_short_ones():
    scene, numbers = filled([3] * 8 + [600] + [3] * 8)
    plan = [(number, 1) for number in numbers]
    parts = parts_of(scene, plan)
    assert parts[8] > 1
    assert not any(parts[:8] + parts[9:])
    check(scene.step(plan))


@pytest.mark.usefixtures("few_programs")
def test_an_uneven_batch_of_seventeen_is_right():
    scene, numbers = filled([1 + 7 * index for index in range(17)], num_heads=6)
    for _ in range(2):
        check(scene.step([(number, 1) for number in numbers]))


@pytest.mark.usefixtures("few_programs")
@pytest.mark.parametrize("bounds", [{"window": 40}, {"chunk": 40}], ids=str)
def test_what_a_window_hides_is_no_work(bounds):
    scene, numbers = filled([600, 500], **bounds)
    plan = [(number, 1) for number in numbers]
    assert max(parts_of(scene, plan)) > 2
    metadata = scene.backend.prepare(scene.layout(plan, Padding()))
    heads = scene.inputs(plan)
    scene.backend.forward(*heads, scene.kv_cache, metadata, scene.sizes.params)
    [made] = metadata.plans.values()
    assert made.count.item() <= 4
    check(scene.step(plan))


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_cap_a_window_and_sinks_together(batch_invariant):
    features = {"soft_cap": 3.0, "window": 70, "has_sinks": True}
    scene, numbers = filled([130, 5, 300], **features, batch_invariant=batch_invariant)
    check(scene.step([(number, 1) for number in numbers]))
    more = scene.add(50)
    check(scene.step([(numbers[0], 1), (more, 50), (numbers[2], 2)]))


@pytest.mark.usefixtures("few_programs")
def test_a_few_tokens_of_a_request_are_split_as_one_is():
    """Draft tokens to be verified fit into the rows of a tile."""
    scene, numbers = filled([400, 20, 3], num_heads=4)
    plan = [(numbers[0], 2), (numbers[1], 1), (numbers[2], 2)]
    assert parts_of(scene, plan)[0] > 1
    check(scene.step(plan))


def test_prompts_have_as_many_programs_as_query_blocks_where_the_host_knows_the_step():
    scene, numbers = filled([5, 9, 30])
    prompts = [scene.add(num_tokens) for num_tokens in (40, 7)]
    plan = [(prompts[0], 40), (numbers[0], 1), (prompts[1], 7), (numbers[1], 1), (numbers[2], 4)]
    known = scene.layout(plan, Padding(2, 3))
    heads, positions = scene.inputs(plan, 3), scene.positions(plan, 3)
    outputs = []
    for step in (known, replace(known, query_lens_host=[], seq_lens_host=[])):
        metadata = scene.backend.prepare(step)
        made = scene.backend._plan(metadata, AttentionBounds())
        assert scene.backend._plan(metadata, AttentionBounds()) is made, "layers share it"
        per_request = made.blocks.diff().tolist()
        splits = scene.backend._splits
        queries, short = splits.block_queries, splits.max_queries
        assert per_request == [-(-n // queries) if n > short else 0 for _, n in plan] + [0] * 2
        assert (made.max_blocks == sum(per_request)) == bool(step.query_lens_host)
        assert made.max_blocks >= sum(per_request)
        out = scene.attend(step, heads, positions)
        outputs.append(out[: sum(n for _, n in plan)])
    assert torch.equal(*outputs)


def test_a_replayed_step_splits_by_its_new_lengths():
    scene, (a, b, c) = filled([170, 40, 5], num_more=8)
    step = CapturedAttentionStep(scene, 4, 4)
    check(step.step([(b, 1), (c, 1)]))
    lone = scene.add(60)
    check(step.step([(lone, 1), (a, 1), (c, 1)]))


def test_batch_invariant_splits_lie_at_fixed_tokens():
    shape = shape_of(max_blocks_per_request=4096, batch_invariant=True)
    backend = TritonBackend(shape)
    assert backend._splits.unit * 32 == 4096 * 16
    assert backend._splits.max_units == 32


@pytest.mark.parametrize(
    "types",
    [
        ("float32", "float32"),
        pytest.param(("float16", "float16"), marks=pytest.mark.slow),
        pytest.param(("float16", "int8"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_rows_across_fixed_splits_have_the_same_bits_in_chunks_and_alone(types, monkeypatch):
    """The first splits its context among programs, the others merge in one; a chunk likewise.

    The third of the rows is the first that sees two splits.
    """
    monkeypatch.setattr(split_plan, "num_programs", lambda *sizes: 4)
    features = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 32, "batch_invariant": True}
    outputs, parts = [], []
    for others, chunks in (
        ([], [126, 1, 1, 1, 1]),
        ([3] * 3, [126, 1, 1, 1, 1]),
        ([40], [126, 4]),
        ([], [60, 68, 2]),
        ([9], [130]),
    ):
        all_sizes = sizes(dtype=types[0], kv_dtype=types[1], **features)
        scene = AttentionScene(TritonBackend, all_sizes)
        number, *beside = (scene.add(length) for length in (130, *(n + 5 for n in others)))
        if beside:
            scene.outputs(list(zip(beside, others, strict=True)))
        rows = []
        for new in chunks:
            plan = [(other, 1) for other in beside] + [(number, new)]
            parts.append(parts_of(scene, plan)[-1])
            rows.append(scene.outputs(plan)[-1])
        outputs.append(torch.cat(rows))
    assert parts[4] == 2
    assert not any(parts[5:])
    for other in outputs[1:]:
        assert torch.equal(outputs[0], other)


def test_a_row_has_the_same_bits_at_every_index_of_a_tile():
    outputs = []
    for chunks in ([45], [3, 1, 22, 1, 18]):
        scene, (other,) = filled([20], num_heads=6, batch_invariant=True)
        number = scene.add(45)
        plans = [[(other, 1), (number, new)] for new in chunks[:4]] + [
            [(number, new)] for new in chunks[4:]
        ]
        outputs.append(torch.cat([scene.outputs(plan)[-1] for plan in plans]))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_the_workspace_is_what_is_allocated(batch_invariant):
    shape = shape_of(batch_invariant=batch_invariant)
    scratch = TritonBackend(shape)._scratch
    assert TritonBackend.workspace_bytes(shape) == scratch.acc.nbytes + scratch.stats.nbytes


def shape_of(**changes):
    return replace(
        AttentionShape(
            num_heads=8,
            num_kv_heads=2,
            head_dim=64,
            block_size=16,
            max_num_seqs=4,
            max_num_batched_tokens=64,
            max_blocks_per_request=64,
            dtype=torch.float32,
            kv_dtype="float32",
            device=torch.device(DEVICE),
        ),
        **changes,
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter warns of infinite values
def test_queries_beyond_float16_stay_finite_over_float8_caches():
    scene = AttentionScene(TritonBackend, sizes(dtype="bfloat16", kv_dtype="float8_e4m3fn"))
    number = scene.add(20)
    scene.requests[number].rows[0].mul_(1e6)
    for plan in ([(number, 18)], [(number, 1)]):
        assert scene.outputs(plan)[0].isfinite().all()
    scene.requests[number].rows[0][19] = torch.inf
    assert not scene.outputs([(number, 1)])[0].isfinite().any()


def test_small_values_of_int8_caches_keep_their_digits_in_float16():
    scene = AttentionScene(TritonBackend, sizes(dtype="float16", kv_dtype="int8"))
    number = scene.add(201)
    scene.requests[number].rows[2].mul_(1e-3)
    check(scene.step([(number, 200)]), 3e-6)
    check(scene.step([(number, 1)]), 3e-6)


def test_a_step_of_padding_alone_is_no_work_and_writes_to_the_null_block_only():
    """As a step is captured, before any request is there."""
    scene, numbers = filled([5, 40])
    step = CapturedAttentionStep(scene, 4, 4)
    q, k, v = (torch.ones_like(heads) for heads in step._rows)
    before = scene.raw.clone()
    metadata = scene.backend.prepare(step._layout)
    scene.backend.forward(q, k, v, scene.kv_cache, metadata, AttentionLayerParams(0.3))
    assert scene.backend._plan(metadata, AttentionBounds()).count.item() == 0
    assert torch.equal(scene.raw[1:], before[1:])
    assert not torch.equal(scene.raw[0], before[0]), "K and V of padding go somewhere"
    plan = [(number, 1) for number in numbers]
    other = scene.backend.prepare(scene.layout(plan, Padding()))
    assert scene.backend._plan(other, AttentionBounds()).count.item() >= 2, "requests are work"
    check(scene.step(plan))


# On 8.0, with fewer registers to spare, some rarely chosen kernels spill.
MAY_SPILL_BYTES = {80: 64, 90: 0}


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
def test_some_kernels_of_each_kind_fit(capability):
    kernels = compiled_in_child("attention_launches:some", capability)
    assert {kernel.name for kernel in kernels} >= {"_attend", "_merge_parts", "_plan"}
    assert_fit(kernels, may_spill_bytes=MAY_SPILL_BYTES[capability])


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("part", attention_launches.PARTS)
def test_every_kernel_that_can_be_chosen_fits(capability, part):
    kernels = compiled_in_child(f"attention_launches:{part}", capability)
    is_float32, may_spill_bytes = "float32" in part, MAY_SPILL_BYTES[capability]
    assert_fit(kernels, is_float32=is_float32, may_spill_bytes=may_spill_bytes)


def test_decode_copies_the_next_tile_meanwhile_in_three_programs():
    """Two tiles of K and two of V, each 16 KiB, in each program; the compiler may lose this."""
    kernels = compiled_in_child("attention_launches:plain", 90)
    (kernel,) = (kernel for kernel in kernels if "IS_ITEM=True" in kernel.what)
    assert kernel.shared_bytes >= 4 * 2**14
    assert 3 * kernel.shared_bytes <= SHARED_BYTES[90]
    assert 3 * 128 * kernel.num_registers <= 2**16


def assert_fit(kernels, *, is_float32=False, may_spill_bytes=0):
    """Shared memory fits; decode does not spill, nor do prompts of the heads that most have."""
    for kernel in kernels:
        assert kernel.fits(), kernel
        is_wide, is_fixed = "DP=256" in kernel.what, "IS_FIXED=True" in kernel.what
        if "IS_ITEM=False" in kernel.what:
            may_spill = is_wide or is_fixed or is_float32
        else:
            may_spill = is_wide and is_fixed and is_float32
        assert may_spill or kernel.local_bytes <= may_spill_bytes, kernel
