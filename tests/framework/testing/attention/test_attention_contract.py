"""Attention conformance kit: every check rejects a broken backend."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from device_attention import DeviceAttention
from kit_checks import AskedCases, Check, checks, rejecting

from quire.interfaces.attention import AttentionBackend, AttentionCapabilities
from quire.testing.attention import (
    attention_checks,
    attention_features,
    attention_graphs,
    attention_scene,
)
from quire.testing.attention import (
    attention_contract as attention,
)
from quire.testing.attention.attention_contract import AttentionBackendContract
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import Padding, SceneSizes
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


class WritesBehindThePage(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        page = kv_cache[0].numel()
        kv_cache.as_strided((len(kv_cache),), kv_cache.stride()[:1], page).zero_()
        return super().forward(q, k, v, kv_cache, metadata, layer)


class ForgetsNothing(TorchSDPABackend):
    def forget_context(self):
        pass


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


class ReadsOneTooFew(TorchSDPABackend):
    def prepare(self, step):
        lens = zip(step.query_lens_host, step.seq_lens_host, strict=True)
        shorter = [max(num_new, length - 1) for num_new, length in lens]
        return super().prepare(replace(step, seq_lens_host=shorter))


class ReadsOneTooMany(TorchSDPABackend):
    def prepare(self, step):
        table = torch.cat((step.block_table, torch.zeros_like(step.block_table[:, :1])), 1)
        longer = [n + 1 for n in step.seq_lens_host]
        return super().prepare(replace(step, seq_lens_host=longer, block_table=table))


class WritesToTheNeighbour(TorchSDPABackend):
    def prepare(self, step):
        return super().prepare(
            replace(step, slot_mapping=step.slot_mapping + self.shape.block_size)
        )


class PadsIntoTheLastBlock(TorchSDPABackend):
    def prepare(self, step):
        last = int(step.block_table.max()) * self.shape.block_size
        slots = torch.where(step.slot_mapping == 0, last, step.slot_mapping)
        return super().prepare(replace(step, slot_mapping=slots))


class ForgetsTheContext(TorchSDPABackend):
    def prepare(self, step):
        return super().prepare(replace(step, seq_lens_host=step.query_lens_host))


class SidesOutermost(TorchSDPABackend):
    @classmethod
    def kv_view(cls, raw, spec, num_blocks):
        view = super().kv_view(raw, spec, num_blocks)
        return view.view(2, num_blocks, *view.shape[2:]).transpose(0, 1)


class OneOfTwoSidesOutermost(TorchSDPABackend):
    @classmethod
    def kv_view(cls, raw, spec, num_blocks):
        return super().kv_view(raw, spec, num_blocks).transpose(0, 1)


class KeepsTheFirstScale(TorchSDPABackend):
    first = None

    def forward(self, q, k, v, kv_cache, metadata, layer):
        self.first = self.first or layer
        return super().forward(q, k, v, kv_cache, metadata, self.first)


class KeepsTheFirstLayersCache(TorchSDPABackend):
    def __init__(self, shape):
        super().__init__(shape)
        self.caches = []

    def forward(self, q, k, v, kv_cache, metadata, layer):
        self.caches.append(kv_cache)
        return super().forward(q, k, v, self.caches[0], metadata, layer)


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


class NoiseByBatch(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q, k, v, kv_cache, metadata, layer)
        return out * (1 + 1e-6 * (len(q) - 1))


class NumbersItsRows(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q, k, v, kv_cache, metadata, layer)
        return out + 1e-5 * torch.arange(len(out)).view(-1, 1, 1)


class OneHeadTooFew(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, layer)[:, 1:]


class SlightlyOff(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, layer) + 1e-4


class WrongForTheFifth(TorchSDPABackend):
    """Right for four requests in a step."""

    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q, k, v, kv_cache, metadata, layer)
        out[sum(metadata.step.query_lens_host[:4]) :] += 1
        return out


def wrong_beyond(length):
    """Return a backend that is wrong in steps with a longer context."""

    class WrongBeyond(TorchSDPABackend):
        def forward(self, q, k, v, kv_cache, metadata, layer):
            out = super().forward(q, k, v, kv_cache, metadata, layer)
            return out + (max(metadata.step.seq_lens_host) > length)

    return WrongBeyond


class DropsThePadding(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q, k, v, kv_cache, metadata, layer)
        return out[: sum(metadata.step.query_lens_host)]


class OneRowTooFew(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, layer)[:-1]


class OutputsInDouble(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, layer).double()


def wrong_at(number, base=TorchSDPABackend):
    """Return a backend whose output of one call, counted from 1, is wrong."""

    class WrongOnce(base):
        num_calls = 0

        def forward(self, *args):
            self.num_calls += 1
            out = super().forward(*args)
            return out + 1 if self.num_calls == number else out

    return WrongOnce


def stray_at(number, *, is_shared=False):
    """Return a backend that clears a block of another request in one call, after its output.

    Args:
        number: Number of the call, from 1.
        is_shared: Whether it clears the first block of the first request; else a free block.
    """

    class StraysOnce(TorchSDPABackend):
        num_calls = 0

        def forward(self, q, k, v, kv_cache, metadata, layer):
            self.num_calls += 1
            out = super().forward(q, k, v, kv_cache, metadata, layer)
            table = metadata.step.block_table
            others = set(range(1, len(kv_cache))) - set(table.flatten().tolist())
            if self.num_calls == number:
                kv_cache[int(table[0, 0]) if is_shared else max(others)] = 0
            return out

    return StraysOnce


class WritesIntoTheLayerBefore(KeepsTheFirstLayersCache):
    """Uses the right cache, and stores K and V in the first layer's as well."""

    def forward(self, q, k, v, kv_cache, metadata, layer):
        super().forward(q, k, v, kv_cache, metadata, layer)
        return TorchSDPABackend.forward(self, q, k, v, kv_cache, metadata, layer)


SIZES_WORK = "test_the_declared_sizes_work"
TYPES_WORK = "test_the_declared_types_work"
CHUNKED = "test_a_prompt_in_chunks_equals_the_whole"
MIXED = "test_prompts_and_single_tokens_share_a_step"
UNEVEN = "test_very_uneven_contexts_share_a_step"
PREFIX = "test_a_shared_prefix_is_read_from_the_other_requests_blocks"
ORDER = "test_the_order_of_requests_changes_nothing"
PADDING = "test_padding_writes_to_the_null_block_only"
SLOTS = "test_only_the_slots_of_a_step_are_written"
BLOCK = "test_a_block_is_contiguous_and_outermost"
LAYERS = "test_layers_share_the_metadata_of_a_step"
OUTSIDE = "test_a_write_from_outside_is_seen_after_forget_context"
WINDOWS = "test_windows_hide_what_lies_before"
LOCAL = "test_chunks_hide_what_lies_before"
UNSEEN = "test_what_no_query_sees_is_never_read"
PAGES = "test_pages_may_be_padded"
CAPPED = "test_scores_are_capped"
SINKS = "test_sinks_enter_the_softmax"
SCALES = "test_each_layer_has_its_own_scales"
ROTARY = "test_heads_are_normed_and_rotated_before_they_are_stored"
INVARIANT = "test_batch_invariant_outputs_are_bit_identical"
SINGLE = "test_a_captured_step_of_single_tokens_is_replayed"
WHOLE = "test_a_captured_step_of_any_tokens_is_replayed"

UNDECLARED = "test_the_declared_sizes_work of what is not declared"
ROTATED = replace(SIZES, rotary="normed")
IN_INVARIANT_MODE = replace(SIZES, batch_invariant=True)
WITH_SINKS = replace(SIZES, has_sinks=True)
# Arguments of each parametrized test of the kit; the others have none.
CASES = {
    SIZES_WORK: (SIZES,),
    TYPES_WORK: (("float32", "float32"),),
    CHUNKED: (7,),
    PADDING: (Padding(2, 2),),
    WINDOWS: (5,),
    LOCAL: (5,),
    UNSEEN: (replace(SIZES, window=20), False),
    PAGES: (2,),
    CAPPED: (2.0,),
    SINKS: (WITH_SINKS,),
    SCALES: ("float8_e4m3fn",),
    ROTARY: (ROTATED,),
    INVARIANT: (IN_INVARIANT_MODE,),
    SINGLE: (SIZES,),
    WHOLE: (SIZES,),
}
REUSED = (replace(SIZES, window=20), True)
FLOAT8, INT8 = (("float32", "float8_e4m3fn"),), (("float32", "int8"),)
ON_DEVICE = partial(wrong_at, base=DeviceAttention)
KIT = (attention, attention_checks, attention_features, attention_graphs, attention_scene)
CONTRACT, FEATURES = "AttentionBackendContract", "DeclaredFeatures"
CAPTURED = "CapturedSteps"

# Broken backend, test of the kit that rejects it, and function and number of the check.
FAULTS = [
    *((wrong_at(n), SIZES_WORK, CONTRACT, n) for n in (1, 2)),
    *((wrong_at(n), TYPES_WORK, CONTRACT, n) for n in (1, 2)),
    (wrong_at(3), CHUNKED, CONTRACT, 1),
    *((wrong_at(n), MIXED, CONTRACT, min(n, 3)) for n in (1, 2, 3)),
    *((wrong_at(n + 7), UNEVEN, CONTRACT, n) for n in (1, 2)),
    *((wrong_at(n + 1), PREFIX, CONTRACT, n) for n in (1, 2)),
    (stray_at(3, is_shared=True), PREFIX, CONTRACT, 3),
    (NumbersItsRows, ORDER, CONTRACT, 1),
    *((wrong_at(n), PADDING, CONTRACT, n) for n in (1, 2)),
    (stray_at(2), PADDING, CONTRACT, 3),
    (PadsIntoTheLastBlock, PADDING, CONTRACT, 1),
    (stray_at(2), SLOTS, CONTRACT, 1),
    (WritesToTheNeighbour, SLOTS, CONTRACT, 1),
    (OneOfTwoSidesOutermost, BLOCK, CONTRACT, 1),
    (SidesOutermost, BLOCK, CONTRACT, 2),
    (KeepsTheFirstScale, LAYERS, CONTRACT, 1),
    (KeepsTheFirstLayersCache, LAYERS, CONTRACT, 2),
    (WritesIntoTheLayerBefore, LAYERS, CONTRACT, 2),
    (wrong_at(2), OUTSIDE, CONTRACT, 1),
    (ForgetsNothing, OUTSIDE, CONTRACT, 2),
    *((broken, SIZES_WORK, CONTRACT, 1) for broken in (SwappedHeads, NoScale)),
    (ReadsOneTooFew, SIZES_WORK, CONTRACT, 2),
    (ReadsOneTooMany, SIZES_WORK, CONTRACT, 1),
    *((broken, SIZES_WORK, CONTRACT, 1) for broken in (WritesToTheNeighbour, HidesWhatItReads)),
    *((broken, SIZES_WORK, CONTRACT, 1) for broken in (SlightlyOff, WrongForTheFifth)),
    (wrong_beyond(4 * SIZES.block_size - 1), SIZES_WORK, CONTRACT, 1),
    (wrong_beyond(4 * SIZES.block_size), SIZES_WORK, CONTRACT, 2),
    (wrong_beyond(256), UNEVEN, CONTRACT, 1),
    (ForgetsTheContext, PREFIX, CONTRACT, 1),
    (ForgetsTheContext, MIXED, CONTRACT, 3),
    (ForgetsTheContext, CHUNKED, CONTRACT, 1),
    (NoScales, TYPES_WORK, CONTRACT, 1, FLOAT8),
    (TruncatesToInt8, TYPES_WORK, CONTRACT, 1, INT8),
    (NoWindow, WINDOWS, FEATURES, 1),
    (WindowOneWider, WINDOWS, FEATURES, 1),
    (NoChunks, LOCAL, FEATURES, 1),
    (ChunkAsWindow, LOCAL, FEATURES, 1),
    *((wrong_at(n), WINDOWS, "DeclaredFeatures._check_bounds", n) for n in (1, 2, 3)),
    *((wrong_at(n), UNSEEN, FEATURES, n) for n in (1, 2)),
    (HidesWhatItReads, UNSEEN, FEATURES, 1),
    (HidesWhatItReads, UNSEEN, FEATURES, 1, REUSED),
    (ReadsTheFirstBlock, UNSEEN, FEATURES, 2),
    (ReadsTheFirstBlock, UNSEEN, FEATURES, 2, REUSED),
    (HidesWhatItReads, UNSEEN, FEATURES, 1, (replace(SIZES, chunk=40), False)),
    (HidesWhatItReads, UNSEEN, FEATURES, 1, (SIZES, False)),
    *((wrong_at(n), PAGES, FEATURES, n) for n in (1, 2)),
    (WritesBehindThePage, PAGES, FEATURES, 3),
    (NoSoftCap, CAPPED, FEATURES, 1),
    (wrong_at(2), CAPPED, FEATURES, 2),
    (NoSinks, SINKS, FEATURES, 1),
    (OneSinkForAll, SINKS, FEATURES, 1),
    (wrong_at(2), SINKS, FEATURES, 2),
    (NoScales, SCALES, FEATURES, 1),
    *((ON_DEVICE(n), ROTARY, FEATURES, n) for n in (1, 2, 3)),
    (RotatesTwiceAsFar, ROTARY, FEATURES, 1),
    (LeavesTheNormOut, ROTARY, FEATURES, 1),
    (NormsKeysAsQueries, ROTARY, FEATURES, 1),
    (NoiseByBatch, INVARIANT, FEATURES, 1),
    *((ON_DEVICE(n), SINGLE, CAPTURED, n) for n in range(1, 7)),
    *((ON_DEVICE(n), WHOLE, CAPTURED, n) for n in range(1, 5)),
    (stray_at(2), PADDING, "AttentionBackendContract._check_writes", 1),
    (NoScale, SIZES_WORK, "AttentionChecks._check", 1),
    (NoWindow, UNDECLARED, "AttentionChecks._scene", 1),
    (OneHeadTooFew, LAYERS, "assert_close", 1),
    (NoScale, SIZES_WORK, "assert_close", 2),
    (OneRowTooFew, SIZES_WORK, "AttentionScene.attend", 1),
    (OneRowTooFew, SIZES_WORK, "assert_like", 1),
    (DropsThePadding, PADDING, "assert_like", 1),
    (OutputsInDouble, SIZES_WORK, "assert_like", 2),
]


def check_of(name, function, number):
    """Return the check of a row of FAULTS; the name of a class stands for its test `name`."""
    is_class = function in (CONTRACT, FEATURES, CAPTURED)
    return Check(f"{function}.{name}" if is_class else function, number)


def run(broken, name, case=None):
    if name == UNDECLARED:
        name, case = SIZES_WORK, (replace(SIZES, head_dim=64),)
    getattr(contract(broken), name)(*(CASES.get(name, ()) if case is None else case))


def kit_tests():
    return sorted(name for name in dir(AttentionBackendContract) if name.startswith("test_"))


@pytest.mark.parametrize("name", kit_tests())
def test_a_right_backend_passes(name):
    run(DeviceAttention if name in (ROTARY, SINGLE, WHOLE) else TorchSDPABackend, name)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0].__name__}-{fault[1]}")
def test_a_broken_backend_is_rejected_by_the_check_that_is_meant_for_it(fault):
    broken, name, function, number, *case = fault
    found = rejecting(partial(run, broken, name, *case), *KIT)
    assert check_of(name, function, number) in found


def test_every_check_of_the_kit_rejects_a_broken_backend():
    assert checks(*KIT) == {check_of(*fault[1:4]) for fault in FAULTS}


def test_a_test_class_may_have_a_tolerance_of_its_own():
    class Exact(type(contract(TorchSDPABackend))):
        def tolerance(self, sizes):
            return 0.0

    with pytest.raises(
        AssertionError, match=r"row . of the step is off by .*at most 0e\+00 is allowed"
    ):
        Exact().test_the_declared_sizes_work(SIZES)


def test_a_rejection_says_what_nan_means():
    with pytest.raises(AssertionError, match=r"nan.*: it read memory that was never written"):
        run(ReadsOneTooMany, SIZES_WORK)


@pytest.mark.parametrize("padding", [Padding(0, 3), Padding(2, 2)])
def test_padding_in_the_block_of_a_request_is_noticed(padding):
    with pytest.raises(AssertionError):
        contract(PadsIntoTheLastBlock).test_padding_writes_to_the_null_block_only(padding)


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
        ("page_padding", "padded_pages"),
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


@pytest.mark.parametrize(("num_cases", "num_tried"), [(None, 4), (1, 1), (2, 2), (3, 2), (9, 4)])
def test_num_cases_limits_the_cases_that_are_tried(num_cases, num_tried):
    kit = contract(DeviceAttention)
    kit.num_cases = num_cases
    asked = AskedCases("window")
    kit.pytest_generate_tests(asked)
    assert len(asked.cases) == num_tried


def test_scenes_allocate_blocks_in_random_order_and_none_twice():
    scene = AttentionScene(TorchSDPABackend, SIZES)
    numbers = [scene.add(50), scene.add(40)]
    scene.outputs([(numbers[0], 50), (numbers[1], 40)])
    given = [block_id for request in scene.requests for block_id in request.block_ids]
    assert len(set(given)) == 7
    assert 0 not in given
    assert given != sorted(given)
    assert given != sorted(given, reverse=True)


def test_scenes_pad_with_nan_and_with_requests_of_no_tokens():
    scene = AttentionScene(TorchSDPABackend, SIZES)
    scene.add(5)
    assert all(heads[3:].isnan().all() for heads in scene.inputs([(0, 3)], 2))
    assert scene.positions([(0, 3)], 2).tolist() == [0, 1, 2, 0, 0]
    layout = scene.layout([(0, 3)], Padding(2, 2))
    assert layout.query_start.tolist() == [0, 3, 3, 3]
    assert layout.seq_lens.tolist() == [3, 0, 0]
    assert layout.block_table[1:].tolist() == [[0], [0]]
    assert layout.slot_mapping[3:].tolist() == [0, 0]
    assert (layout.query_lens_host, layout.seq_lens_host) == ([3], [3])


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


def test_the_scene_poisons_unwritten_memory():
    scene = AttentionScene(TorchSDPABackend, SIZES)
    assert scene.kv_cache.isnan().all()
    assert isinstance(scene.backend, AttentionBackend)


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
