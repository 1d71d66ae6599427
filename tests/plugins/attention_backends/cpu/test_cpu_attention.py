"""The backend `cpu` passes the conformance kit with every instruction set of this machine."""

from dataclasses import replace
from pkgutil import resolve_name

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_libraries import SETS_AND_ARM, again, use_set

from quire.errors import NativeUnavailableError
from quire.interfaces.attention import AttentionLayerParams, RotaryStep
from quire.layers.attention.rotary import Rotation, rotate
from quire.native.compiled_cache import FOLDER_VARIABLE
from quire.plugins.loading import load_plugins
from quire.testing.attention import AttentionBackendContract
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.attention.attention_truth import reference_attention
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.cpu import cpu_library
from quire_attention_backends.cpu.cpu_attention import CpuBackend
from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend

ENTRY = load_plugins().registries.attention_backends.entry("cpu")


def on_threads(count, sizes):
    """Return a scene whose backend uses `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return AttentionScene(CpuBackend, sizes)
    finally:
        torch.set_num_threads(before)


def check(scene, plan, padding=None):
    for output, expected in scene.step(plan, padding):
        limit = scene.sizes.tolerance
        torch.testing.assert_close(output.double(), expected, atol=limit, rtol=limit)


@pytest.fixture(params=SETS_AND_ARM, scope="module", autouse=True)
def _instruction_set(request):
    """Run all tests with the kernels for one instruction set, and then for the next."""
    with pytest.MonkeyPatch.context() as patch:
        use_set(patch, cpu_library, request.param)
        yield


class TestCpu(AttentionBackendContract):
    """On two threads, so that requests and contexts are cut."""

    backend_class = CpuBackend
    capabilities = ENTRY.capabilities

    @pytest.fixture(autouse=True)
    def _two_threads(self):
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        yield
        torch.set_num_threads(before)


ODD = [
    {"head_dim": 1, "block_size": 2, "num_heads": 3, "num_kv_heads": 1},
    {"head_dim": 4, "block_size": 2, "num_heads": 20, "num_kv_heads": 1},
    {"head_dim": 12, "block_size": 32, "num_heads": 6, "num_kv_heads": 3},
    {"head_dim": 33, "block_size": 4, "num_heads": 7, "num_kv_heads": 7},
    {"head_dim": 100, "block_size": 8, "num_heads": 5, "num_kv_heads": 1},
    {"head_dim": 192, "block_size": 16, "num_heads": 3, "num_kv_heads": 1},
]
KEPT = ["float32", "bfloat16", "float16", "float8_e4m3fn", "int8"]


@pytest.mark.parametrize("sizes", ODD, ids=str)
@pytest.mark.parametrize("kv_dtype", KEPT)
def test_odd_sizes_are_correct(sizes, kv_dtype):
    scene = on_threads(2, SceneSizes(kv_dtype=kv_dtype, k_scale=0.5, v_scale=2.0, **sizes))
    long, short, other = scene.add(70), scene.add(30), scene.add(9)
    check(scene, [(long, 60), (short, 3)], Padding(1, 2))
    check(scene, [(other, 1), (long, 1), (short, 20)])
    check(scene, [(long, 2), (short, 1), (other, 5)])


FEATURES = [
    {"window": 77},
    {"chunk": 90},
    {"window": 200, "chunk": 150, "soft_cap": 3.0},
    {"soft_cap": 30.0, "has_sinks": True},
    {"has_sinks": True, "kv_dtype": "float8_e4m3fn", "k_scale": 0.5, "v_scale": 2.0},
]


@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_features_are_correct_over_many_tiles(features):
    scene = on_threads(3, SceneSizes(num_heads=4, num_kv_heads=1, **features))
    prompt, decoding = scene.add(330), scene.add(300)
    check(scene, [(decoding, 290)])
    check(scene, [(prompt, 150), (decoding, 1)])
    check(scene, [(decoding, 3), (prompt, 170)])
    check(scene, [(prompt, 1), (decoding, 1)])


@pytest.mark.parametrize("kv_dtype", KEPT)
@pytest.mark.parametrize("threads", [2, 5])
def test_partial_outputs_of_a_context_are_merged(threads, kv_dtype):
    """There is a single request with a single key/value head to divide among the threads."""
    sizes = SceneSizes(num_heads=2, num_kv_heads=1, kv_dtype=kv_dtype)
    whole, cut = (on_threads(count, sizes) for count in (1, threads))
    for scene in (whole, cut):
        scene.add(1900)
        for _ in range(3):
            scene.outputs([(0, 630)])
    for num_new in (1, 4, 2):
        (one,), (other,) = (scene.outputs([(0, num_new)]) for scene in (whole, cut))
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
        assert not torch.equal(one, other), "nothing was merged"
    check(cut, [(0, 1)])


def test_a_row_without_visible_keys_in_a_part_of_its_context_gets_nothing_from_it():
    """A cut among the last keys, at a multiple of 32, is after the first of 8 new tokens."""
    scene = on_threads(3, SceneSizes(num_heads=8, num_kv_heads=8))
    short, cut = scene.add(60), scene.add(263)
    scene.outputs([(short, 59), (cut, 255)])
    check(scene, [(short, 1), (cut, 8)])


MANY_HEADS = [  # an item takes 32, 8 or 5 of the heads, and the last one the rest
    {"num_heads": 41, "num_kv_heads": 41, "head_dim": 16},
    {"num_heads": 84, "num_kv_heads": 21, "head_dim": 16},
    {"num_heads": 54, "num_kv_heads": 9, "head_dim": 40},
]


@pytest.mark.parametrize("sizes", MANY_HEADS, ids=str)
@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
def test_items_of_some_of_the_heads_are_cut_and_merged(sizes, kv_dtype):
    whole, cut = (on_threads(count, SceneSizes(kv_dtype=kv_dtype, **sizes)) for count in (1, 3))
    for scene in (whole, cut):
        scene.add(420)
        scene.add(50)
        scene.outputs([(0, 400), (1, 40)])
    for plan in ([(0, 1), (1, 1)], [(1, 2), (0, 1)], [(0, 2), (1, 1)]):
        found = cut.step(plan)
        limit = cut.sizes.tolerance
        for output, expected in found:
            torch.testing.assert_close(output.double(), expected, atol=limit, rtol=limit)
        one, other = torch.cat(whole.outputs(plan)), torch.cat([output for output, _ in found])
        assert not torch.equal(one, other), "no item was cut"


def test_block_tables_may_be_a_part_of_wider_ones():
    scene = on_threads(1, SceneSizes())
    plan = [(scene.add(40), 40), (scene.add(70), 70)]
    layout, heads = scene.layout(plan, Padding()), scene.inputs(plan)
    table = layout.block_table
    wide = torch.cat((table, torch.full_like(table, 2**30)), 1)[:, : table.shape[1]]
    outputs = [
        scene.backend.forward(
            *heads, scene.kv_cache, scene.backend.prepare(each), scene.sizes.params
        )
        for each in (layout, replace(layout, block_table=wide))
    ]
    assert torch.equal(*outputs)


def test_equal_steps_have_equal_bits():
    outputs = []
    for _ in range(5):
        scene = on_threads(4, SceneSizes(num_heads=6, num_kv_heads=2))
        first, second = scene.add(900), scene.add(500)
        scene.outputs([(first, 640)])
        scene.outputs([(first, 100), (second, 450)])
        outputs.append(torch.cat(scene.outputs([(first, 1), (second, 1)])))
    assert all(torch.equal(outputs[0], other) for other in outputs)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    steps=st.lists(st.lists(st.integers(0, 30), min_size=5, max_size=5), max_size=4),
    threads=st.integers(1, 4),
    group=st.sampled_from([1, 3, 5, 16, 24]),
    window=st.none() | st.integers(1, 50),
)
def test_any_mixture_of_requests_is_correct(lengths, steps, threads, group, window):
    sizes = SceneSizes(num_heads=group, num_kv_heads=1, head_dim=16, window=window, block_size=8)
    scene = on_threads(threads, sizes)
    for length in lengths:
        scene.add(length)
    for step in steps:
        left = [len(request.rows[0]) - request.num_computed for request in scene.requests]
        shares = enumerate(map(min, zip(left, step, strict=False)))
        plan = [(number, num_new) for number, num_new in shares if num_new]
        if plan:
            check(scene, plan, Padding(2, 1))


@pytest.mark.parametrize("head_dim", [64, 12, 40])
def test_rotating_heads_equals_the_layers(head_dim):
    scene = AttentionScene(CpuBackend, SceneSizes(head_dim=head_dim))
    scene.add(20)
    layout = scene.layout([(0, 20)], Padding())
    q, k, v = scene.inputs([(0, 20)])
    angles = 6.0 * torch.rand(20, head_dim // 2)
    cos, sin = angles.cos(), angles.sin()
    table = torch.stack((torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)), 1)
    positions, params = torch.arange(20).flip(0), scene.sizes.params
    rotation = Rotation(table, positions)
    caches = [torch.zeros_like(scene.kv_cache) for _ in range(2)]
    metadata = scene.backend.prepare(layout)
    apart = scene.backend.forward(
        rotate(q, rotation), rotate(k, rotation), v, caches[0], metadata, params
    )
    turning = RotaryStep(table, positions)
    fused = scene.backend.forward_rotary(
        torch.cat((q, k, v), 1), turning, caches[1], metadata, params
    )
    torch.testing.assert_close(fused, apart, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(*caches, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kv_dtype", KEPT)
def test_torch_sdpa_reads_what_it_wrote(kv_dtype):
    """Rounding may differ by one code where a value is between two codes; float32 is exact."""
    scenes = [
        AttentionScene(backend_class, SceneSizes(kv_dtype=kv_dtype, k_scale=0.3))
        for backend_class in (CpuBackend, TorchSDPABackend)
    ]
    for scene in scenes:
        scene.add(41)
        scene.outputs([(0, 40)])
    ours, theirs = (scene.raw[scene.requests[0].block_ids[:2]] for scene in scenes)
    assert (ours != theirs).sum() <= ours.numel() // 1000
    scenes[1].raw.copy_(scenes[0].raw)
    scenes[1].backend.forget_context()
    check(scenes[1], [(0, 1)])


def test_heads_need_not_be_contiguous():
    scene = AttentionScene(CpuBackend, SceneSizes())
    scene.add(30)
    layout = scene.layout([(0, 30)], Padding())
    heads = scene.inputs([(0, 30)])
    apart = [head.transpose(0, 1).contiguous().transpose(0, 1) for head in heads]
    metadata, params = scene.backend.prepare(layout), scene.sizes.params
    one = scene.backend.forward(*heads, scene.kv_cache, metadata, params)
    other = scene.backend.forward(*apart, scene.kv_cache, metadata, params)
    assert torch.equal(one, other)


def test_each_layer_keeps_its_own_constants():
    scene = AttentionScene(CpuBackend, SceneSizes(num_heads=1, num_kv_heads=1, head_dim=8))
    scene.add(2)
    metadata = scene.backend.prepare(scene.layout([(0, 2)], Padding()))
    heads = scene.inputs([(0, 2)])
    scales = [0.5 + number / 100 for number in range(100)]
    layers = [AttentionLayerParams(scale) for scale in scales]
    outputs = [scene.backend.forward(*heads, scene.kv_cache, metadata, layer) for layer in layers]
    again = scene.backend.forward(*heads, scene.kv_cache, metadata, layers[0])
    assert torch.equal(again, outputs[0])
    assert not torch.equal(outputs[0], outputs[-1])


def test_layers_with_equal_constants_have_caches_of_their_own():
    scene = AttentionScene(CpuBackend, SceneSizes(num_heads=1, num_kv_heads=1, head_dim=8))
    scene.add(2)
    metadata = scene.backend.prepare(scene.layout([(0, 2)], Padding()))
    heads, caches = scene.inputs([(0, 2)]), [torch.zeros_like(scene.kv_cache) for _ in range(2)]
    for cache in caches:
        scene.backend.forward(*heads, cache, metadata, scene.sizes.params)
    assert caches[0].any()
    assert torch.equal(*caches)


def test_a_layer_that_is_gone_leaves_nothing_to_the_next():
    """The next layer may get the same id."""
    scene = AttentionScene(CpuBackend, SceneSizes(num_heads=1, num_kv_heads=1, head_dim=8))
    scene.add(2)
    metadata = scene.backend.prepare(scene.layout([(0, 2)], Padding()))
    q, k, v = scene.inputs([(0, 2)])
    for number in range(30):
        layer = AttentionLayerParams(0.1 + number)
        out = scene.backend.forward(q, k, v, scene.kv_cache, metadata, layer)
        expected = reference_attention(q.double(), k.double(), v.double(), layer)
        torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=0)
        del layer


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("num_new", [1, 20])
def test_nan_is_not_hidden(has_sinks, num_new):
    """A query of NaN has an output of NaN, with any number of threads."""
    for threads in (1, 3):
        scene = on_threads(threads, SceneSizes(has_sinks=has_sinks))
        long, other = scene.add(900), scene.add(900)
        for number in (long, other):
            scene.outputs([(number, 600)])
        scene.requests[long].rows[0][600:] = torch.nan
        broken, whole = scene.outputs([(long, num_new), (other, num_new)])
        assert broken.isnan().all()
        assert whole.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_what_the_program_calls_its_default_type_does_not_matter(dtype):
    scene = AttentionScene(CpuBackend, SceneSizes())
    scene.add(30)
    layout, heads = scene.layout([(0, 30)], Padding()), scene.inputs([(0, 30)])
    turning = RotaryStep(torch.rand(30, 2, 64), torch.arange(30))

    def both():
        backend = CpuBackend(scene.backend.shape)
        metadata, cache = backend.prepare(layout), torch.zeros_like(scene.kv_cache)
        given = (cache, metadata, scene.sizes.params)
        plain = backend.forward(*heads, *given)
        return plain, backend.forward_rotary(torch.cat(heads, 1), turning, *given)

    expected = both()
    torch.set_default_dtype(dtype)
    try:
        found = both()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_without_a_compiler_its_probe_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))  # an empty cache
    monkeypatch.setattr(cpu_library, "LIBRARY", again(cpu_library.LIBRARY))
    probe = load_plugins().registries.attention_backends.entry("cpu").capabilities.probe
    assert "no-such-compiler" in resolve_name(probe)()
    with pytest.raises(NativeUnavailableError, match="no-such-compiler"):
        AttentionScene(CpuBackend, SceneSizes())
