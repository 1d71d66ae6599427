"""MLA conformance kit: every check rejects a broken backend."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from device_mla import DEVICE_MLA, DeviceMLA
from kit_checks import AskedCases, Check, checks, rejecting

from quire.testing.attention.attention_sizes import Padding
from quire.testing.mla import mla_contract as mla
from quire.testing.mla import mla_graphs, mla_scene
from quire.testing.mla.mla_contract import MLABackendContract
from quire.testing.mla.mla_scene import MLAScene, MLASizes

SIZES = MLASizes(latent_dim=32, rope_dim=16)
MANY_TYPES = frozenset({"float32", "bfloat16", "int8"})


def contract(broken, declared=DEVICE_MLA):
    class Contract(MLABackendContract):
        backend_class = broken
        capabilities = declared

    return Contract()


class HalvesOutermost(DeviceMLA):
    """The first tokens of all blocks, and then the others."""

    @classmethod
    def kv_view(cls, raw, spec, num_blocks):
        row = spec.layer.head_dim
        halves = raw.view(torch.float32).view(2, num_blocks, spec.block_size // 2, row)
        return halves.transpose(0, 1)


class TokensOutermost(DeviceMLA):
    @classmethod
    def kv_view(cls, raw, spec, num_blocks):
        return super().kv_view(raw, spec, num_blocks).transpose(0, 1)


class ForgetsTheRotatedKey(DeviceMLA):
    def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
        return super().forward(q_latent, 0 * q_rope, latent, k_rope, kv_cache, metadata, scale)


class KeepsTheFirstScale(DeviceMLA):
    first = None

    def forward(self, *args):
        self.first = self.first or args[-1]
        return super().forward(*args[:-1], self.first)


class WritesIntoTheLayerBefore(DeviceMLA):
    """Uses the right cache, and stores the rows in the first layer's as well."""

    first = None

    def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
        self.first = kv_cache if self.first is None else self.first
        rows = (q_latent, q_rope, latent, k_rope)
        super().forward(*rows, self.first, metadata, scale)
        return super().forward(*rows, kv_cache, metadata, scale)


class TakesHeadsForRows(DeviceMLA):
    """Reads queries as if they were contiguous."""

    def forward(self, q_latent, *rest):
        misread = q_latent.as_strided(q_latent.shape, torch.empty(q_latent.shape).stride())
        return super().forward(misread, *rest)


class WritesBehindThePage(DeviceMLA):
    def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
        page = kv_cache[0].numel()
        kv_cache.as_strided((len(kv_cache),), kv_cache.stride()[:1], page).zero_()
        return super().forward(q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale)


class CopiesTheCache(DeviceMLA):
    """Reads the first block from a copy and ignores writes to the cache."""

    def __init__(self, shape):
        super().__init__(shape)
        self.copied = {}

    def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
        for block_id in metadata.block_table[metadata.seq_lens > self.shape.block_size, 0].tolist():
            if block_id in self.copied:
                kv_cache[block_id] = self.copied[block_id]
        out = super().forward(q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale)
        for block_id in metadata.block_table[metadata.seq_lens > self.shape.block_size, 0].tolist():
            self.copied.setdefault(block_id, kv_cache[block_id].clone())
        return out


class OneHeadTooFew(DeviceMLA):
    def forward(self, *args):
        return super().forward(*args)[:, 1:]


class SlightlyOff(DeviceMLA):
    def forward(self, *args):
        return super().forward(*args) + 1e-4


class WrongForTheFifth(DeviceMLA):
    """Right for four requests in a step."""

    def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
        out = super().forward(q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale)
        out[sum(metadata.query_lens_host[:4]) :] += 1
        return out


class OutputsInDouble(DeviceMLA):
    def forward(self, *args):
        return super().forward(*args).double()


class KeepsTheFirstStep(DeviceMLA):
    """Behaves like a buffer that is filled at capture and never again."""

    first = None

    def prepare(self, step):
        if step.seq_lens_host:
            return super().prepare(step)
        self.first = self.first or replace(step, seq_lens=step.seq_lens.clone())
        return super().prepare(self.first)


class HidesWhatItReads(DeviceMLA):
    """Reads whole blocks and relies on the mask."""

    def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
        rows = (q_latent, q_rope, latent, k_rope)
        out = super().forward(*rows, kv_cache, metadata, scale)
        return out + (kv_cache[metadata.block_table.long()] * 0).sum()


def wrong_at(number):
    """Return a backend whose output of one call, counted from 1, is wrong."""

    class WrongOnce(DeviceMLA):
        num_calls = 0

        def forward(self, *args):
            self.num_calls += 1
            out = super().forward(*args)
            return out + 1 if self.num_calls == number else out

    return WrongOnce


def stray_at(number, *, is_shared=False):
    """Return a backend that clears a block of another request in one call, after its output."""

    class StraysOnce(DeviceMLA):
        num_calls = 0

        def forward(self, q_latent, q_rope, latent, k_rope, kv_cache, metadata, scale):
            self.num_calls += 1
            rows = (q_latent, q_rope, latent, k_rope)
            out = super().forward(*rows, kv_cache, metadata, scale)
            others = set(range(1, len(kv_cache))) - set(metadata.block_table.flatten().tolist())
            if self.num_calls == number:
                kv_cache[int(metadata.block_table[0, 0]) if is_shared else max(others)] = 0
            return out

    return StraysOnce


LAYOUT = "test_it_declares_the_layout"
SIZES_WORK = "test_the_declared_sizes_work"
TYPES_WORK = "test_the_declared_types_work"
CHUNKED = "test_a_prompt_in_chunks_equals_the_whole"
MIXED = "test_prompts_and_single_tokens_share_a_step"
UNEVEN = "test_very_uneven_contexts_share_a_step"
PREFIX = "test_a_shared_prefix_is_read_from_the_other_requests_blocks"
PADDING = "test_padding_writes_to_the_null_block_only"
SLOTS = "test_only_the_slots_of_a_step_are_written"
BLOCK = "test_a_block_is_contiguous_and_outermost"
LAYERS = "test_layers_share_the_metadata_of_a_step"
PARTS = "test_a_layer_may_pass_views_of_larger_tensors"
PAGES = "test_pages_may_be_padded"
OUTSIDE = "test_a_write_from_outside_is_seen_after_forget_context"
SINGLE = "test_a_captured_step_of_single_tokens_is_replayed"
WHOLE = "test_a_captured_step_of_any_tokens_is_replayed"
UNDECLARED = "test_the_declared_sizes_work of what is not declared"

# Arguments of each parametrized test of the kit; the others have none.
CASES = {
    SIZES_WORK: (SIZES,),
    TYPES_WORK: (("float32", "float32"),),
    CHUNKED: (7,),
    PADDING: (Padding(2, 2),),
    PAGES: (2,),
    SINGLE: (True,),
    WHOLE: (True,),
}
KIT = (mla, mla_graphs, mla_scene)

# Broken backend, test of the kit that rejects it, and its check or that of another function.
FAULTS = [
    *((wrong_at(n), SIZES_WORK, n) for n in (1, 2)),
    *((wrong_at(n), TYPES_WORK, n) for n in (1, 2)),
    (wrong_at(3), CHUNKED, 1),
    (wrong_at(1), MIXED, 1),
    (wrong_at(2), MIXED, 2),
    (wrong_at(3), MIXED, 3),
    *((wrong_at(n + 5), UNEVEN, n) for n in (1, 2)),
    *((wrong_at(n + 1), PREFIX, n) for n in (1, 2)),
    (stray_at(3, is_shared=True), PREFIX, 3),
    *((wrong_at(n), PADDING, n) for n in (1, 2)),
    (stray_at(2), PADDING, 3),
    (stray_at(2), SLOTS, 1),
    (TokensOutermost, BLOCK, 1),
    (HalvesOutermost, BLOCK, 2),
    (KeepsTheFirstScale, LAYERS, 1),
    (WritesIntoTheLayerBefore, LAYERS, 2),
    (TakesHeadsForRows, PARTS, 1),
    *((wrong_at(n), PAGES, n) for n in (1, 2)),
    (WritesBehindThePage, PAGES, 3),
    (wrong_at(2), OUTSIDE, 1),
    (CopiesTheCache, OUTSIDE, 2),
    *((wrong_at(n), SINGLE, n) for n in range(1, 6)),
    *((wrong_at(n), WHOLE, n) for n in range(1, 4)),
    (KeepsTheFirstStep, SINGLE, 3),
    (KeepsTheFirstStep, WHOLE, 2),
    *((broken, SIZES_WORK, 1) for broken in (SlightlyOff, WrongForTheFifth)),
    (ForgetsTheRotatedKey, SIZES_WORK, 1),
    (HidesWhatItReads, SIZES_WORK, 1),
    (wrong_at(1), SIZES_WORK, "MLABackendContract._check", 1),
    (stray_at(2), SLOTS, "MLABackendContract._check_writes", 1),
    (wrong_at(1), UNDECLARED, "MLABackendContract._scene", 1),
    (OneHeadTooFew, SIZES_WORK, "MLAScene.attend", 1),
    (OutputsInDouble, SIZES_WORK, "MLAScene.attend", 1),
]


def check_of(name, *where):
    return Check(*where) if len(where) == 2 else Check(f"MLABackendContract.{name}", *where)


def run(broken, name):
    if name == UNDECLARED:
        contract(broken).test_the_declared_sizes_work(replace(SIZES, block_size=1))
    else:
        getattr(contract(broken), name)(*CASES.get(name, ()))


@pytest.mark.parametrize("name", [n for n in vars(MLABackendContract) if n.startswith("test_")])
def test_a_right_backend_passes(name):
    run(DeviceMLA, name)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0].__name__}-{fault[1]}")
def test_a_broken_backend_is_rejected_by_the_check_that_is_meant_for_it(fault):
    broken, name, *where = fault
    assert check_of(name, *where) in rejecting(partial(run, broken, name), *KIT)


@pytest.mark.parametrize("layouts", [{"kv", "mla"}, {"kv"}])
def test_another_layout_is_noticed(layouts):
    other = contract(DeviceMLA, replace(DEVICE_MLA, layouts=frozenset(layouts)))
    assert check_of(LAYOUT, 1) in rejecting(other.test_it_declares_the_layout, *KIT)


def test_every_check_of_the_kit_rejects_a_broken_backend():
    proved = {check_of(name, *where) for _, name, *where in FAULTS}
    assert checks(*KIT) == proved | {check_of(LAYOUT, 1)}


def cases_of(name, **capabilities):
    asked = AskedCases(name)
    contract(DeviceMLA, replace(DEVICE_MLA, **capabilities)).pytest_generate_tests(asked)
    return asked.cases


def test_sizes_are_tried_one_after_the_other():
    found = cases_of("sizes", block_sizes=None)
    assert found[0] == SIZES
    assert [(each.latent_dim, each.rope_dim) for each in found[1:3]] == [(64, 16), (128, 32)]
    assert [each.block_size for each in found[3:5]] == [1, 64]
    assert [each.num_heads for each in found[5:]] == [1, 20]


def test_types_are_tried_in_every_declared_pair_the_closest_first():
    found = cases_of("types", dtypes=MANY_TYPES, kv_dtypes=MANY_TYPES)
    assert found[0] == ("float32", "float32")
    assert len(set(found)) == 4
    first = cases_of("sizes", dtypes=frozenset({"bfloat16"}))[0]
    assert (first.dtype, first.kv_dtype) == ("bfloat16", "float32")


@pytest.mark.parametrize(
    ("graphs", "single", "whole"),
    [("none", [], []), ("decode", [True], []), ("full", [True], [True])],
)
def test_captured_steps_are_tried_as_declared(graphs, single, whole):
    assert cases_of("captured", graphs=graphs) == single
    assert cases_of("captured_whole", graphs=graphs) == whole


def test_padded_pages_are_tried_where_they_are_declared():
    assert cases_of("page_padding") == [1, 7]
    assert cases_of("page_padding", padded_pages=False) == []
    assert cases_of("something else") is None


def test_a_tolerance_is_that_of_the_coarser_type():
    kit = contract(DeviceMLA, replace(DEVICE_MLA, kv_dtypes=frozenset({"bfloat16"})))
    expected = torch.zeros(1, 4, 32)
    kit._check([(expected + 0.02, expected)])
    with pytest.raises(AssertionError, match=r"row 0 of the step is off by 4\.00e-02"):
        kit._check([(expected + 0.04, expected)])
    with pytest.raises(AssertionError, match="at most 1e-02 is allowed"):
        kit._check([(expected + 0.02, expected)], 0.01)


def test_scenes_poison_unwritten_memory_and_what_padding_writes():
    scene = MLAScene(DeviceMLA, replace(SIZES, num_padding_rows=1))
    assert scene.kv_cache.isnan().all()
    assert scene.raw.shape[1] == scene.page_bytes + (32 + 16) * 4
    scene.add(5)
    assert all(rows[3:].isnan().all() for rows in scene.inputs([(0, 3)], 2))
    layout = scene.layout([(0, 3)], Padding(2, 2))
    assert layout.query_start.tolist() == [0, 3, 3, 3]
    assert layout.seq_lens.tolist() == [3, 0, 0]
    assert layout.slot_mapping[3:].tolist() == [0, 0]


def test_scenes_allocate_blocks_in_random_order_and_none_twice():
    scene = MLAScene(DeviceMLA, SIZES)
    plan = [(scene.add(50), 50), (scene.add(40), 40)]
    scene.step(plan)
    given = [block_id for request in scene.requests for block_id in request.block_ids]
    assert len(set(given)) == 7
    assert 0 not in given
    assert given not in (sorted(given), sorted(given, reverse=True))
