"""Use of torch's varlen attention, with a stand-in that computes it by the definition."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from kv_pages import pages_of, shape_of

from quire.interfaces.attention import AttentionLayerParams
from quire.plugins.loading import load_plugins
from quire.testing.attention import AttentionBackendContract
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.attention.attention_truth import reference_attention
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.torch import torch_sdpa
from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend
from quire_attention_backends.torch.varlen import VarlenAttention, build_varlen

HALF = shape_of("bfloat16", dtype=torch.bfloat16)
PLAIN = AttentionLayerParams(0.1)
CAPABILITIES = load_plugins().registries.attention_backends.entry("torch_sdpa").capabilities


class ByDefinition:
    """A function with the signature of torch's that counts its calls."""

    def __init__(self):
        self.num_calls = 0

    def __call__(
        self,
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        max_q,
        max_k,
        *,
        scale=None,
        window_size=(-1, -1),
        enable_gqa=False,
    ):
        self.num_calls += 1
        assert enable_gqa or query.shape[1] == key.shape[1]
        assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
        assert window_size[1] == 0, "causal attention looks at nothing behind the query"
        assert (len(query), len(key), len(value)) == (cu_seq_q[-1], cu_seq_k[-1], cu_seq_k[-1])
        assert (cu_seq_q.diff().max(), cu_seq_k.diff().max()) == (max_q, max_k)
        window = None if window_size[0] == -1 else window_size[0] + 1
        layer = AttentionLayerParams(scale, window)
        parts = [
            reference_attention(query[q0:q1].double(), key[k0:k1].double(), v.double(), layer)
            for q0, q1, k0, k1 in zip(cu_seq_q, cu_seq_q[1:], cu_seq_k, cu_seq_k[1:], strict=False)
            for v in [value[k0:k1]]
        ]
        return torch.cat(parts).to(query.dtype)


class OnStandIn(TorchSDPABackend):
    def __init__(self, shape):
        self.stand_in = ByDefinition()
        super().__init__(shape, VarlenAttention(self.stand_in, supports_gqa=True))


class TestOnStandIn(AttentionBackendContract):
    backend_class = OnStandIn
    capabilities = replace(CAPABILITIES, dtypes=frozenset({"bfloat16", "float16"}))


def scene_of(*lengths, **sizes):
    scene = AttentionScene(OnStandIn, SceneSizes(dtype="bfloat16", **sizes))
    return scene, [scene.add(length) for length in lengths]


def num_calls(scene, *steps):
    for plan in steps:
        for output, expected in scene.step(plan, Padding(1, 2)):
            torch.testing.assert_close(output.double(), expected, atol=3e-2, rtol=0)
    return scene.backend.stand_in.num_calls


def test_a_step_is_one_call():
    scene, _ = scene_of(30, 9, kv_dtype="bfloat16")
    assert num_calls(scene, [(0, 20), (1, 8)], [(1, 1), (0, 9)], [(0, 1)]) == 3


@pytest.mark.parametrize(
    "sizes",
    [
        {"dtype": "float32"},
        {"soft_cap": 5.0},
        {"has_sinks": True},
        {"has_alibi": True},
        {"chunk": 8},
        {"head_dim": 36},
    ],
    ids=str,
)
def test_unsupported_features_do_not_use_torchs_kernel(sizes):
    wanted = SceneSizes(**{"dtype": "float16", "kv_dtype": "float16", **sizes})
    scene = AttentionScene(OnStandIn, wanted)
    scene.add(20)
    assert num_calls(scene, [(0, 12)], [(0, 1)]) == 0


def test_batch_invariant_mode_never_calls_torchs_kernel():
    scene, _ = scene_of(20, kv_dtype="bfloat16", batch_invariant=True)
    assert num_calls(scene, [(0, 12)], [(0, 1)]) == 0


def test_a_step_that_would_gather_too_much_is_done_in_batches(monkeypatch):
    monkeypatch.setitem(torch_sdpa.MAX_GATHERED_BYTES, "cpu", 30 * 2 * 2 * 64 * 2)
    scene, _ = scene_of(31, kv_dtype="bfloat16")
    assert num_calls(scene, [(0, 30)]) == 1
    assert num_calls(scene, [(0, 1)]) == 1


def test_without_groups_only_equal_heads_are_served():
    bare = VarlenAttention(ByDefinition(), supports_gqa=False)
    assert not bare.supports(HALF, PLAIN)
    assert bare.supports(replace(HALF, num_kv_heads=HALF.num_heads), PLAIN)


def test_the_kernel_is_not_available_on_a_cpu():
    assert VarlenAttention.if_available(HALF) is None


def test_a_cpu_does_not_wait_for_what_it_cannot_use_to_be_imported():
    """The import loads dynamo, which takes two seconds."""
    code = (
        "import sys, quire_attention_backends.torch.torch_sdpa; "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("capability", "is_able"), [((7, 5), False), ((8, 0), True)])
def test_a_gpu_must_be_able_to_run_it(capability, is_able, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = VarlenAttention.if_available(replace(HALF, device=torch.device("cuda")))
    assert (found is not None) == is_able


@pytest.mark.parametrize(("head_dim", "is_served"), [(256, True), (264, False), (36, False)])
def test_heads_have_a_size_that_it_takes(head_dim, is_served):
    both = VarlenAttention(ByDefinition(), supports_gqa=True)
    assert both.supports(replace(HALF, head_dim=head_dim), PLAIN) == is_served


def test_a_step_of_padding_alone_makes_no_call():
    scene, _ = scene_of(4, kv_dtype="bfloat16")
    layout = replace(
        scene.layout([(0, 2)], Padding()),
        query_start=torch.zeros(2, dtype=torch.int32),
        seq_lens=torch.zeros(1, dtype=torch.int32),
        slot_mapping=torch.zeros(2, dtype=torch.int64),
        query_lens_host=[],
        seq_lens_host=[],
    )
    metadata = scene.backend.prepare(layout)
    heads = scene.inputs([(0, 2)])
    out = scene.backend.forward(*heads, scene.kv_cache, metadata, scene.sizes.params)
    assert len(out) == 2
    assert scene.backend.stand_in.num_calls == 0


def test_a_chunk_of_a_prompt_attends_to_what_came_before():
    scene, _ = scene_of(30, kv_dtype="bfloat16")
    assert num_calls(scene, [(0, 10)], [(0, 20)]) == 2


def test_layers_of_one_step_have_windows_of_their_own():
    scene, _ = scene_of(40, kv_dtype="bfloat16")
    scene.step([(0, 30)])
    metadata = scene.backend.prepare(scene.layout([(0, 10)], Padding()))
    (q, k, v), heads = scene.requests[0].rows, scene.inputs([(0, 10)])
    for window in (None, 4, 17):
        layer = replace(scene.sizes.params, sliding_window=window)
        out = scene.backend.forward(*heads, scene.kv_cache, metadata, layer)
        expected = reference_attention(q[30:].double(), k.double(), v.double(), layer)
        torch.testing.assert_close(out.double(), expected, atol=3e-2, rtol=0)


def test_fresh_requests_attend_to_their_own_k_and_v():
    scene, _ = scene_of(5, 3, kv_dtype="bfloat16")
    layout = scene.layout([(0, 5), (1, 3)], Padding(1, 2))
    rows = CacheRows.of(pages_of(HALF)[0], HALF)
    batch = build_varlen(layout, AttentionBounds(), rows, may_use_own=True)
    assert batch.context is None
    assert batch.query_start.tolist() == batch.key_start.tolist() == [0, 5, 8]
    assert (batch.max_query_len, batch.max_key_len) == (5, 5)
    assert (batch.num_tokens, batch.num_keys) == (8, 8)
    assert build_varlen(layout, AttentionBounds(), rows, may_use_own=False).context is not None


@pytest.mark.parametrize(("window", "num_keys"), [(None, [21, 8]), (6, [6, 8]), (3, [3, 5])])
def test_only_keys_that_some_query_sees_are_gathered(window, num_keys):
    scene, numbers = scene_of(21, 8, kv_dtype="bfloat16")
    scene.step([(numbers[0], 20), (numbers[1], 5)])
    layout = scene.layout([(0, 1), (1, 3)], Padding())
    rows = CacheRows.of(pages_of(HALF)[0], HALF)
    batch = build_varlen(layout, AttentionBounds(window), rows, may_use_own=True)
    assert batch.key_start.tolist() == [0, num_keys[0], sum(num_keys)]
    keys = batch.context.view(2, sum(num_keys), 2)[0, :, 0].tolist()
    tables = [scene.requests[number].block_ids for number in numbers]
    positions = [
        (table, position)
        for table, length, count in zip(tables, (21, 8), num_keys, strict=True)
        for position in range(length - count, length)
    ]
    page_rows = 2 * 2 * 16
    assert keys == [table[p // 16] * page_rows + p % 16 for table, p in positions]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU to run torch's kernel")
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float8_e4m3fn", "int8"])
@pytest.mark.parametrize("window", [None, 7])
def test_torchs_kernel_is_right(window, kv_dtype):
    sizes = SceneSizes(dtype="bfloat16", kv_dtype=kv_dtype, window=window, device="cuda")
    scene = AttentionScene(TorchSDPABackend, sizes)
    assert VarlenAttention.if_available(scene.backend.shape).supports(
        scene.backend.shape, sizes.params
    )
    for length in (40, 9, 70):
        scene.add(length)
    for plan in ([(0, 30), (1, 8)], [(2, 65), (0, 1), (1, 1)], [(0, 9), (2, 1)], [(2, 1)]):
        for output, expected in scene.step(plan, Padding(1, 2)):
            torch.testing.assert_close(output.double(), expected, atol=3e-2, rtol=0)
