"""Attention conformance kit: every check rejects a broken backend."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from device_attention import DeviceAttention
from kit_checks import AskedCases, Check, checks, rejecting

from quire.interfaces.attention import AttentionCapabilities
from quire.testing.attention import attention_contract
from quire.testing.attention.attention_contract import AttentionBackendContract
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.kv_backend import kv_backend_contract
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend

TYPES = frozenset({"float32"})
CAPABILITIES = AttentionCapabilities(
    devices=frozenset({"cpu"}),
    dtypes=TYPES,
    kv_dtypes=TYPES | {"float8_e4m3fn", "int8"},
    head_dims=frozenset({32}),
    block_sizes=frozenset({16}),
    sliding_window=True,
    attention_chunk=True,
    logit_soft_cap=True,
    padded_pages=True,
    sinks=True,
    alibi=True,
    batch_invariant=True,
)
SIZES = SceneSizes(head_dim=32)


def contract(broken):
    class Contract(AttentionBackendContract):
        backend_class = broken
        capabilities = CAPABILITIES

    return Contract()


class SwappedHeads(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k.flip(1), v.flip(1), kv_cache, metadata, layer)


class NoScale(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, scale=1.0))


class NoWindow(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, sliding_window=None))


class WindowOneWider(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        window = layer.sliding_window
        layer = layer if window is None else replace(layer, sliding_window=window + 1)
        return super().forward(q, k, v, kv_cache, metadata, layer)


class NoChunks(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, attention_chunk=None))


class ChunkAsWindow(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        layer = replace(layer, attention_chunk=None, sliding_window=layer.attention_chunk)
        return super().forward(q, k, v, kv_cache, metadata, layer)


class NoSoftCap(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, logit_soft_cap=None))


class NoSinks(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, sinks=None))


class OneSinkForAll(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        sinks = None if layer.sinks is None else layer.sinks[:1].expand_as(layer.sinks)
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, sinks=sinks))


class NoBiases(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, alibi_slopes=None))


class OneSlopeForAll(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        slopes = None if layer.alibi_slopes is None else layer.alibi_slopes.mean().expand(4)
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, alibi_slopes=slopes))


class NoScales(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        plain = replace(layer, k_scale=1.0, v_scale=1.0)
        return super().forward(q, k, v, kv_cache, metadata, plain)


class TruncatesToInt8(TorchSDPABackend):
    """Rounds towards zero instead of to the nearest."""

    def forward(self, q, k, v, kv_cache, metadata, layer):
        if self.shape.kv_dtype == "int8":
            k, v = self._cut(k), self._cut(v)
        return super().forward(q, k, v, kv_cache, metadata, layer)

    def _cut(self, x):
        scales = x.abs().amax(-1, keepdim=True) / 127
        return (x / scales * (1 + 1e-6)).trunc() * scales


class RotatesTwiceAsFar(DeviceAttention):
    def forward_rotary(self, qkv, rotary, kv_cache, metadata, layer):
        doubled = replace(rotary, positions=2 * rotary.positions)
        return super().forward_rotary(qkv, doubled, kv_cache, metadata, layer)


class LeavesTheNormOut(DeviceAttention):
    def forward_rotary(self, qkv, rotary, kv_cache, metadata, layer):
        bare = replace(rotary, norm_weight=None)
        return super().forward_rotary(qkv, bare, kv_cache, metadata, layer)


class NormsKeysAsQueries(DeviceAttention):
    def forward_rotary(self, qkv, rotary, kv_cache, metadata, layer):
        weight = rotary.norm_weight
        shifted = None if weight is None else weight.roll(1, 0)
        odd = replace(rotary, norm_weight=shifted)
        return super().forward_rotary(qkv, odd, kv_cache, metadata, layer)


class HidesWhatItReads(TorchSDPABackend):
    """Reads whole blocks and relies on the mask; right, unless the hidden values are NaN."""

    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q, k, v, kv_cache, metadata, layer)
        step, start = metadata.step, 0
        for request, num_new in enumerate(step.query_lens_host):
            blocks = kv_cache[step.block_table[request].long(), 1]  # [blocks, K, S, D]
            zero = (blocks * 0).sum()
            out[start : start + num_new] += zero
            start += num_new
        return out


class ReadsTheFirstBlock(TorchSDPABackend):
    """Reads a request's first block once it is full, seen or not, and relies on the mask."""

    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q, k, v, kv_cache, metadata, layer)
        step = metadata.step
        full = [n >= self.shape.block_size for n in step.seq_lens_host]
        first = step.block_table[: len(full), 0][torch.tensor(full)]
        return out + (kv_cache[first.long()] * 0).sum()


class AppendsEachCall(TorchSDPABackend):
    """Writes to the next slot if a layer has written to a step's slots before."""

    metadata = None

    def forward(self, q, k, v, kv_cache, metadata, layer):
        if metadata is self.metadata:
            k = k.roll(1, 0)
        self.metadata = metadata
        return super().forward(q, k, v, kv_cache, metadata, layer)


class NoiseByBatch(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q, k, v, kv_cache, metadata, layer)
        return out * (1 + 1e-6 * (len(q) - 1))


def wrong_at(number, base=TorchSDPABackend):
    """Return a backend whose output of one call, counted from 1, is wrong."""

    class WrongOnce(base):
        num_calls = 0

        def forward(self, *args):
            self.num_calls += 1
            out = super().forward(*args)
            return out + 1 if self.num_calls == number else out

    return WrongOnce


SIZES_WORK = "test_the_declared_sizes_work"
TYPES_WORK = "test_the_declared_types_work"
WINDOWS = "test_windows_hide_what_lies_before"
LOCAL = "test_chunks_hide_what_lies_before"
UNSEEN = "test_what_no_query_sees_is_never_read"
CAPPED = "test_scores_are_capped"
SINKS = "test_sinks_enter_the_softmax"
BIASES = "test_scores_have_a_bias_by_distance"
SCALES = "test_each_layer_has_its_own_scales"
ROTARY = "test_heads_are_normed_and_rotated_before_they_are_stored"
SHARED = "test_layers_may_share_a_cache"
INVARIANT = "test_batch_invariant_outputs_are_bit_identical"

ROTATED = replace(SIZES, rotary="normed")
IN_INVARIANT_MODE = replace(SIZES, batch_invariant=True)
WITH_SINKS = replace(SIZES, has_sinks=True)
WITH_BIASES = replace(SIZES, has_alibi=True)
# Arguments of each parametrized test of the kit.
CASES = {
    SIZES_WORK: (SIZES,),
    WINDOWS: (5,),
    LOCAL: (5,),
    UNSEEN: (replace(SIZES, window=20), False),
    CAPPED: (2.0,),
    SINKS: (WITH_SINKS,),
    BIASES: (WITH_BIASES,),
    SCALES: ("float8_e4m3fn",),
    SHARED: (),
    ROTARY: (ROTATED,),
    INVARIANT: (IN_INVARIANT_MODE,),
}
REUSED = (replace(SIZES, window=20), True)
ON_DEVICE = partial(wrong_at, base=DeviceAttention)
KIT = (attention_contract,)
RAGGED = ("KVBackendContract._check_ragged", 1)
TYPED = ("KVBackendContract.test_the_declared_types_work", 1)

# Broken backend, test of the kit that rejects it, function and number of the check, and the
# arguments of the test, if they are not those of `CASES`.
FAULTS = [
    *((broken, SIZES_WORK, *RAGGED) for broken in (SwappedHeads, NoScale)),
    (NoScales, TYPES_WORK, *TYPED, ("float32", "float8_e4m3fn")),
    (TruncatesToInt8, TYPES_WORK, *TYPED, ("float32", "int8")),
    (NoWindow, WINDOWS, WINDOWS, 1),
    (WindowOneWider, WINDOWS, WINDOWS, 1),
    (NoChunks, LOCAL, LOCAL, 1),
    (ChunkAsWindow, LOCAL, LOCAL, 1),
    *((wrong_at(n), WINDOWS, "_check_bounds", n) for n in (1, 2, 3)),
    *((wrong_at(n), UNSEEN, UNSEEN, n) for n in (1, 2)),
    (HidesWhatItReads, UNSEEN, UNSEEN, 1),
    (HidesWhatItReads, UNSEEN, UNSEEN, 1, *REUSED),
    (ReadsTheFirstBlock, UNSEEN, UNSEEN, 2),
    (ReadsTheFirstBlock, UNSEEN, UNSEEN, 2, *REUSED),
    (HidesWhatItReads, UNSEEN, UNSEEN, 1, replace(SIZES, chunk=40), False),
    (HidesWhatItReads, UNSEEN, UNSEEN, 1, SIZES, False),
    (NoSoftCap, CAPPED, CAPPED, 1),
    (wrong_at(2), CAPPED, CAPPED, 2),
    (NoSinks, SINKS, SINKS, 1),
    (OneSinkForAll, SINKS, SINKS, 1),
    (wrong_at(2), SINKS, SINKS, 1),
    (NoBiases, BIASES, BIASES, 1),
    (OneSlopeForAll, BIASES, BIASES, 1),
    (wrong_at(2), BIASES, BIASES, 1),
    (NoScales, SCALES, SCALES, 1),
    *((wrong_at(n), SHARED, SHARED, 1) for n in (1, 2, 7, 8)),
    (AppendsEachCall, SHARED, SHARED, 1),
    *((ON_DEVICE(n), ROTARY, ROTARY, n) for n in (1, 2, 3)),
    (RotatesTwiceAsFar, ROTARY, ROTARY, 1),
    (LeavesTheNormOut, ROTARY, ROTARY, 1),
    (NormsKeysAsQueries, ROTARY, ROTARY, 1),
    (NoiseByBatch, INVARIANT, INVARIANT, 1),
]


def check_of(function, number):
    """Return a check; a function without a class is one of the attention kit's own."""
    is_whole = "." in function
    return Check(function if is_whole else f"AttentionBackendContract.{function}", number)


def run(broken, name, *case):
    getattr(contract(broken), name)(*(case or CASES[name]))


@pytest.mark.parametrize("name", [n for n in vars(AttentionBackendContract) if n[:5] == "test_"])
def test_a_right_backend_passes(name):
    run(DeviceAttention if name == ROTARY else TorchSDPABackend, name)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0].__name__}-{fault[1]}")
def test_a_broken_backend_is_rejected_by_the_check_that_is_meant_for_it(fault):
    broken, name, function, number, *case = fault
    found = rejecting(partial(run, broken, name, *case), *KIT, kv_backend_contract)
    assert check_of(function, number) in found


def test_every_check_of_the_kit_rejects_a_broken_backend():
    proved = {check_of(*fault[2:4]) for fault in FAULTS}
    assert checks(*KIT) == proved - {Check(*RAGGED), Check(*TYPED)}


def cases_of(name, **capabilities):
    kit = contract(DeviceAttention)
    kit.capabilities = replace(CAPABILITIES, **capabilities)
    asked = AskedCases(name)
    kit.pytest_generate_tests(asked)
    return asked.cases


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("window", "sliding_window"),
        ("chunk_size", "attention_chunk"),
        ("soft_cap", "logit_soft_cap"),
        ("sinks", "sinks"),
        ("alibi", "alibi"),
        ("invariant", "batch_invariant"),
    ],
)
def test_what_is_declared_is_tried_and_nothing_else(name, feature):
    assert len(cases_of(name)) > 1
    assert not cases_of(name, **{feature: False})


def test_sizes_types_and_captured_steps_are_tried_as_declared():
    assert len(cases_of("sizes")) == 1
    assert cases_of("types") == list(contract(DeviceAttention)._cases().types())
    assert cases_of("scaled_dtype") == ["float8_e4m3fn"]
    assert not cases_of("scaled_dtype", kv_dtypes=frozenset({"float32", "int8"}))
    assert cases_of("bounds")[0] == SIZES
    assert len(cases_of("bounds")) == 9
    assert {1, SIZES.block_size} <= set(cases_of("window"))
    assert max(cases_of("window")) > 2 * SIZES.block_size
    assert cases_of("rotary")
    assert not cases_of("captured")
    assert cases_of("captured", graphs="decode")
    assert not cases_of("captured_whole", graphs="decode")
    assert cases_of("captured_whole", graphs="full")
    assert cases_of("something else") is None


@pytest.mark.parametrize("is_reused", [False, True])
def test_scenes_poison_blocks_that_no_query_sees_any_more(is_reused):
    scene = AttentionScene(TorchSDPABackend, replace(SIZES, window=20))
    number = scene.add(60)
    scene.outputs([(number, 55)])
    first, *others = scene.requests[number].block_ids
    scene.free_unseen_blocks(number, is_reused=is_reused)
    second = others[0] if is_reused else 0
    assert scene.requests[number].block_ids == [first * is_reused, second, *others[1:]]
    assert scene.kv_cache[first].isnan().all()
    assert not scene.kv_cache[others[1]].isnan().all()


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "int8"])
def test_unwritten_memory_is_nan_in_quantized_caches_too(kv_dtype):
    scene = AttentionScene(TorchSDPABackend, replace(SIZES, kv_dtype=kv_dtype))
    scene.add(3)
    layout = scene.layout([(0, 3)], Padding())
    longer = replace(layout, seq_lens_host=[4])
    metadata = scene.backend.prepare(longer)
    q, k, v = scene.inputs([(0, 3)])
    out = scene.backend.forward(q, k, v, scene.kv_cache, metadata, scene.sizes.params)
    assert out.isnan().any()
