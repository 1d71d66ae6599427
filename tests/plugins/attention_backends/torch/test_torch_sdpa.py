"""The reference backend passes the conformance kit."""

import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from quire.errors import RefusedError
from quire.interfaces.attention import AttentionShape, StepLayout
from quire.interfaces.kv_cache import KVLayer
from quire.plugins.loading import load_plugins
from quire.testing.attention import AttentionBackendContract
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.attention.attention_truth import first_seen, reference_attention
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.torch import torch_sdpa
from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend
from quire_kv_cache_specs.full_attention import FullAttentionSpec

ENTRY = load_plugins().registries.attention_backends.entry("torch_sdpa")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class TestTorchSDPA(AttentionBackendContract):
    backend_class = TorchSDPABackend
    capabilities = ENTRY.capabilities


def spec(kv_dtype="float32"):
    return FullAttentionSpec(KVLayer("layers.0.attn", "full_attention", 2, 32), 16, kv_dtype)


def test_the_view_has_heads_before_tokens():
    page = spec().page_bytes
    raw = torch.zeros(5 * page, dtype=torch.uint8)
    assert TorchSDPABackend.kv_view(raw, spec(), 5).shape == (5, 2, 2, 16, 32)


def test_pages_that_are_not_k_and_v_are_refused():
    class OddSpec(FullAttentionSpec):
        @property
        def page_bytes(self):
            return super().page_bytes + 4

    odd = OddSpec(spec().layer, 16, "float32")
    with pytest.raises(RefusedError, match=r"layers\.0\.attn"):
        TorchSDPABackend.kv_view(torch.zeros(odd.page_bytes, dtype=torch.uint8), odd, 1)


@pytest.mark.parametrize(
    ("kv_dtype", "max_blocks", "num_tokens", "token_bytes"),
    [
        ("bfloat16", 8, 4 * 128, 2),  # three requests and a span of a prompt, all of their tokens
        ("bfloat16", 2**14, 2**28 // (2 * 2 * 2 * 64), 2),  # the limit of a batch
        ("bfloat16", 2**16, 2**20, 2),  # one request alone, which may exceed the limit
        ("float8_e4m3fn", 8, 4 * 128, 1 + 4 + 2),  # codes, decoded float32, and the dtype of q
        ("float32", 8, 4 * 128, 4 + 2),
    ],
)
def test_the_workspace_is_what_a_batch_gathers(kv_dtype, max_blocks, num_tokens, token_bytes):
    shape = AttentionShape(
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        block_size=16,
        max_num_seqs=3,
        max_num_batched_tokens=128,
        max_blocks_per_request=max_blocks,
        dtype=torch.bfloat16,
        kv_dtype=kv_dtype,
        device=torch.device("cuda"),
    )
    rows = num_tokens * 2 * 2  # of K and V, each with its index
    expected = rows * (64 * token_bytes + 8)
    assert TorchSDPABackend.workspace_bytes(shape) == expected
    assert TorchSDPABackend.workspace_bytes(replace(shape, device=torch.device("cpu"))) == 0


def scene_after(prompts, **sizes):
    scene = AttentionScene(TorchSDPABackend, SceneSizes(**sizes))
    numbers = [scene.add(length + 4) for length in prompts]
    scene.step(list(zip(numbers, prompts, strict=True)))
    return scene, numbers


class OperatorCount(TorchDispatchMode):
    """Counts operators that compute; views are free."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_a_layer_of_a_decode_step_is_six_operators():
    scene, numbers = scene_after([30, 20, 25])
    plan = [(number, 1) for number in numbers]
    metadata = scene.backend.prepare(scene.layout(plan, Padding()))
    q, k, v = scene.inputs(plan)
    scene.backend.forward(q, k, v, scene.kv_cache, metadata, scene.sizes.params)
    with OperatorCount() as count:
        scene.backend.forward(q, k, v, scene.kv_cache, metadata, scene.sizes.params)
    assert [name.split("::")[1].split(".")[0] for name in count.names] == [
        "cat",
        "index_copy_",
        "index_copy_",
        "baddbmm",
        "_softmax",
        "bmm",
    ]


def test_outputs_of_uneven_contexts_are_in_the_order_of_the_batch():
    scene, numbers = scene_after([3, 500, 8, 300, 1], num_heads=16, num_kv_heads=8)
    assert len(plan_of(scene, numbers)) > 1
    for output, expected in scene.step([(number, 1) for number in numbers]):
        torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    "layer",
    [{"window": 9}, {"chunk": 9}, {"soft_cap": 2.0}, {"has_sinks": True}],
    ids=lambda layer: next(iter(layer)),
)
def test_single_tokens_whose_context_could_be_held_have_every_feature(layer):
    scene, numbers = scene_after([30, 28], **layer)
    for _ in range(2):
        for output, expected in scene.step([(number, 1) for number in numbers]):
            torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("lengths", [(40, 30), (1, 1)], ids=["prompts", "single tokens"])
@pytest.mark.parametrize("sizes", [{}, {"dtype": "bfloat16"}, {"batch_invariant": True}], ids=str)
def test_layers_of_one_step_see_as_far_as_each_does(lengths, sizes):
    scene = AttentionScene(TorchSDPABackend, SceneSizes(**sizes))
    numbers = [scene.add(120) for _ in lengths]
    plan = list(zip(numbers, lengths, strict=True))
    scene.outputs([(number, 70) for number in numbers])
    metadata = scene.backend.prepare(scene.layout(plan, Padding()))
    heads = scene.inputs(plan)
    bounds = [(None, None), (9, None), (None, 9), (40, 50), (None, None), (9, 50)]
    for window, chunk in bounds:
        layer = replace(scene.sizes.params, sliding_window=window, attention_chunk=chunk)
        out = scene.backend.forward(*heads, scene.kv_cache, metadata, layer)
        for number, rows in zip(numbers, out.split(list(lengths)), strict=True):
            end = 70 + lengths[number]
            q, k, v = (each[:end].double() for each in scene.requests[number].rows)
            expected = reference_attention(q[70:], k, v, layer)
            limit = 3e-2 if "dtype" in sizes else 2e-5
            torch.testing.assert_close(rows.double(), expected, atol=limit, rtol=0)


def test_scores_of_16_bit_queries_are_kept_in_float32():
    """The scores are large, so that float16 would hold them to a thirtieth."""
    scene = AttentionScene(TorchSDPABackend, SceneSizes(dtype="float16", kv_dtype="float16"))
    number = scene.add(60)
    scene.requests[number].rows[0].mul_(16)
    scene.step([(number, 58)])
    for _ in range(2):
        [(output, expected)] = scene.step([(number, 1)])
        torch.testing.assert_close(output.double(), expected, atol=4e-3, rtol=0)


def plan_of(scene, numbers):
    layout = scene.layout([(number, 1) for number in numbers], Padding())
    metadata = scene.backend.prepare(layout)
    q, k, v = scene.inputs([(number, 1) for number in numbers])
    scene.backend.forward(q, k, v, scene.kv_cache.clone(), metadata, scene.sizes.params)
    return metadata.step_batches[AttentionBounds(), False].batches


def count_opcodes(run):
    """Count the opcodes that the interpreter executes of the plugin's own functions."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if "quire_attention_backends" not in frame.f_code.co_filename:
            return None  # garbage collection and warnings occur at any time
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def work_of(plan, contexts, **sizes):
    """Count operators and Python's opcodes of the first layer of a step, and of the second."""
    scene = AttentionScene(TorchSDPABackend, SceneSizes(**sizes))
    numbers = [
        scene.add(context + num_new) for num_new, context in zip(plan, contexts, strict=True)
    ]
    scene.outputs(list(zip(numbers, contexts, strict=True)))
    shares = list(zip(numbers, plan, strict=True))
    layout, heads = scene.layout(shares, Padding()), scene.inputs(shares)
    metadata = []

    def first_layer():
        scene.backend.forget_context()
        metadata.append(scene.backend.prepare(layout))
        scene.backend.forward(*heads, scene.kv_cache, metadata[-1], scene.sizes.params)

    def second_layer():
        scene.backend.forward(*heads, scene.kv_cache, metadata[-1], scene.sizes.params)

    counted = []
    for layer in (first_layer, second_layer):
        layer()  # one-time work
        with OperatorCount() as operators:
            layer()
        counted.append((len(operators.names), count_opcodes(layer)))
    return counted


@pytest.mark.parametrize("new", [(1,) * 8, (1, 5, 1, 1, 12, 1, 6, 2)], ids=["decode", "mixed"])
@pytest.mark.parametrize(
    "sizes",
    [{}, {"kv_dtype": "int8"}, {"window": 7}, {"batch_invariant": True}, {"soft_cap": 5.0}],
    ids=str,
)
def test_eight_times_the_requests_are_the_same_operators_and_the_same_python(
    new, sizes, monkeypatch
):
    monkeypatch.setattr(torch_sdpa, "CALL_COST_BYTES", 64)  # so each length has its own batch
    few, many = (
        work_of(new * factor, (3, 20, 3, 9, 9, 20, 9, 3) * factor, head_dim=16, **sizes)
        for factor in (1, 8)
    )
    assert few == many
    assert min(few[1]) > 0


CONTEXTS = st.sampled_from([0, 1, 5, 16, 70, 200])
NEW_TOKENS = st.sampled_from([1, 1, 1, 2, 3, 17, 130])


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(st.tuples(CONTEXTS, NEW_TOKENS), min_size=1, max_size=9),
    bounds=st.sampled_from([{}, {"window": 9}, {"chunk": 32}]),
    more=st.sampled_from([{}, {"batch_invariant": True}, {"has_sinks": True}, {"soft_cap": 3.0}]),
    num_padding=st.integers(0, 2),
    call_cost=st.sampled_from([2**10, 2**20]),
    limit=st.sampled_from([2**16, 2**23]),
)
def test_any_batch_matches_the_definition(requests, bounds, more, num_padding, call_cost, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_sdpa, "CALL_COST_BYTES", call_cost)
        patch.setitem(torch_sdpa.MAX_GATHERED_BYTES, "cpu", limit)
        scene = AttentionScene(TorchSDPABackend, SceneSizes(head_dim=32, **bounds, **more))
        numbers = [scene.add(context + new) for context, new in requests]
        computed = [
            (number, context)
            for number, (context, _) in zip(numbers, requests, strict=True)
            if context
        ]
        plan = [(number, new) for number, (_, new) in zip(numbers, requests, strict=True)]
        for step in filter(None, (computed, plan)):
            for output, expected in scene.step(step, Padding(num_padding, 2 * num_padding)):
                torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)


def test_a_prompt_row_is_the_same_beside_others():
    outputs = []
    for others in ([], [130, 64, 1]):
        scene = AttentionScene(TorchSDPABackend, SceneSizes())
        first = scene.add(64)
        plan = [(first, 64), *((scene.add(length), length) for length in others)]
        outputs.append(scene.step(plan)[0][0])
    torch.testing.assert_close(*outputs, atol=1e-6, rtol=0)


def test_a_step_of_padding_alone_has_the_shape_of_one():
    scene, _ = scene_after([5])
    layout = StepLayout(
        query_start=torch.zeros(2, dtype=torch.int32),
        seq_lens=torch.zeros(1, dtype=torch.int32),
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        slot_mapping=torch.zeros(2, dtype=torch.int64),
        num_tokens=0,
        max_query_len=0,
        query_lens_host=[],
        seq_lens_host=[],
    )
    q, k, v = torch.ones(2, 4, 64), torch.ones(2, 2, 64), torch.ones(2, 2, 64)
    metadata = scene.backend.prepare(layout)
    out = scene.backend.forward(q, k, v, scene.kv_cache, metadata, scene.sizes.params)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)


def poison_unseen(scene, plan):
    """Put NaN into every row that no query of a plan may see; return what was there."""
    cache = scene.kv_cache.movedim(3, 1)  # [B, S, 2, K, D]
    is_seen = torch.zeros(cache.shape[:2], dtype=torch.bool)
    for number, num_new in plan:
        request, size = scene.requests[number], scene.sizes.block_size
        start = first_seen(request.num_computed, scene.sizes.params)
        for position in range(start, request.num_computed + num_new):
            is_seen[request.block_ids[position // size], position % size] = True
    before = cache.clone()
    cache[~is_seen] = torch.nan
    return before, is_seen


BOUNDS = [{}, {"window": 5}, {"window": 16}, {"window": 40}, {"chunk": 5}, {"chunk": 48}]


@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_no_row_is_read_that_no_query_of_the_step_may_see(bounds, soft_cap, batch_invariant):
    sizes = SceneSizes(soft_cap=soft_cap, batch_invariant=batch_invariant, **bounds)
    scene = AttentionScene(TorchSDPABackend, sizes)
    long, short, idle = scene.add(330), scene.add(40), scene.add(20)
    steps = (
        [(idle, 20)],
        [(long, 90), (short, 4)],
        [(long, 160)],  # two spans
        [(short, 17), (long, 1)],
        *[[(long, 1), (short, 1)]] * 3,
        [(short, 3), (long, 20)],
    )
    for plan in steps:
        scene.layout(plan, Padding())  # allocates the blocks
        before, is_seen = poison_unseen(scene, plan)
        for output, expected in scene.step(plan, Padding(1, 2)):
            torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)
        scene.kv_cache.movedim(3, 1)[~is_seen] = before[~is_seen]
