"""Shared part of the kits of attention and of latent attention: every check rejects a backend."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from device_attention import DEVICE_ATTENTION, DeviceAttention
from device_mla import DEVICE_MLA, DeviceMLA
from kit_checks import AskedCases, Check, checks, rejecting

from quire.interfaces.attention import AttentionCapabilities, KVBackend
from quire.testing.attention import AttentionBackendContract
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.kv_backend import kv_backend_checks, kv_backend_contract, kv_backend_scene
from quire.testing.kv_backend.kv_backend_contract import KVBackendContract
from quire.testing.kv_backend.kv_backend_scene import KVBackendScene
from quire.testing.kv_backend.pool_sizes import Padding, PoolSizes
from quire.testing.mla import MLABackendContract
from quire.testing.mla.mla_scene import MLAScene, MLASizes

# The last arguments of `forward`: the cache, the metadata, which are the step, and the parameters
# of the layer. The broken backends know nothing else of either contract.
CACHE, STEP, PARAMS = -3, -2, -1


@dataclass(frozen=True)
class Kit:
    """A contract, and a backend that fulfils it.

    Attributes:
        sizes: Sizes that the backend declares.
        undeclared: Sizes that it does not.
    """

    contract: type[KVBackendContract]
    scene: type[KVBackendScene]
    right: type[KVBackend]
    declared: AttentionCapabilities
    sizes: PoolSizes
    undeclared: PoolSizes

    def of(self, backend, **changes):
        """Return the contract of a backend with these changes of its capabilities."""
        kit = self.contract.__new__(type("Contract", (self.contract,), {"backend_class": backend}))
        type(kit).capabilities = replace(self.declared, **changes)
        return kit


KITS = {
    "attention": Kit(
        AttentionBackendContract,
        AttentionScene,
        DeviceAttention,
        DEVICE_ATTENTION,
        SceneSizes(head_dim=32),
        SceneSizes(head_dim=64),
    ),
    "mla": Kit(
        MLABackendContract,
        MLAScene,
        DeviceMLA,
        DEVICE_MLA,
        MLASizes(latent_dim=32, rope_dim=16),
        MLASizes(block_size=1),
    ),
}


@pytest.fixture(params=KITS)
def kit(request):
    return KITS[request.param]


def on_output(change):
    """Return a fault: the output of each call is changed, given the arguments of the call."""

    def broken(base):
        class ChangesTheOutput(base):
            def forward(self, *args):
                return change(super().forward(*args), args)

        return ChangesTheOutput

    return broken


def on_step(change):
    """Return a fault: each step is changed before it is prepared, given the shape."""

    def broken(base):
        class ChangesTheStep(base):
            def prepare(self, step):
                return super().prepare(replace(step, **change(step, self.shape)))

        return ChangesTheStep

    return broken


def wrong_at(number):
    """Return a fault: the output of one call, counted from 1, is wrong."""

    def broken(base):
        class WrongOnce(base):
            num_calls = 0

            def forward(self, *args):
                self.num_calls += 1
                return super().forward(*args) + (self.num_calls == number)

        return WrongOnce

    return broken


def stray_at(number, *, is_shared=False):
    """Return a fault: one call clears a block of another request, after its output.

    Args:
        number: Number of the call, from 1.
        is_shared: Whether it clears the first block of the first request; else a free block.
    """

    def broken(base):
        class StraysOnce(base):
            num_calls = 0

            def forward(self, *args):
                self.num_calls += 1
                out, table = super().forward(*args), args[STEP].block_table
                others = set(range(1, len(args[CACHE]))) - set(table.flatten().tolist())
                if self.num_calls == number:
                    args[CACHE][int(table[0, 0]) if is_shared else max(others)] = 0
                return out

        return StraysOnce

    return broken


def wrong_beyond(length):
    """Return a fault: steps with a longer context are wrong."""
    return on_output(lambda out, args: out + (max(args[STEP].seq_lens_host) > length))


def wrong_for_the_fifth(out, args):
    out[sum(args[STEP].query_lens_host[:4]) :] += 1
    return out


def hides_what_it_reads(out, args):
    """Read whole blocks and rely on a mask; right, unless the hidden values are NaN."""
    return out + (args[CACHE][args[STEP].block_table.long()] * 0).sum()


def drops_the_padding(out, args):
    return out[: sum(args[STEP].query_lens_host)]


def numbers_its_rows(out, args):
    return out + 1e-5 * torch.arange(len(out)).view(-1, 1, 1)


def reads_one_too_few(step, shape):
    return {"seq_lens": torch.maximum(step.seq_lens - 1, step.query_start.diff())}


def reads_one_too_many(step, shape):
    table = torch.cat((step.block_table, torch.zeros_like(step.block_table[:, :1])), 1)
    return {"seq_lens": step.seq_lens + 1, "block_table": table}


def forgets_the_context(step, shape):
    return {"seq_lens": step.query_start.diff()}


def writes_to_the_neighbour(step, shape):
    return {"slot_mapping": step.slot_mapping + shape.block_size}


def pads_into_the_last_block(step, shape):
    last = int(step.block_table.max()) * shape.block_size
    return {"slot_mapping": torch.where(step.slot_mapping == 0, last, step.slot_mapping)}


def tokens_outermost(base):
    class TokensOutermost(base):
        @classmethod
        def kv_view(cls, raw, spec, num_blocks):
            return super().kv_view(raw, spec, num_blocks).transpose(0, 1)

    return TokensOutermost


def halves_outermost(base):
    """Return a fault: the first halves of all blocks, and then the others."""

    class HalvesOutermost(base):
        @classmethod
        def kv_view(cls, raw, spec, num_blocks):
            view = super().kv_view(raw, spec, num_blocks)
            return view.view(2, num_blocks, -1).transpose(0, 1)

    return HalvesOutermost


def keeps_the_first_scale(base):
    class KeepsTheFirstScale(base):
        first = None

        def forward(self, *args):
            self.first = self.first or args[PARAMS]
            return super().forward(*args[:PARAMS], self.first)

    return KeepsTheFirstScale


def writes_into_the_layer_before(base):
    """Return a fault: the right cache is used, and the first layer's is written as well."""

    class WritesIntoTheLayerBefore(base):
        first = None

        def forward(self, *args):
            self.first = args[CACHE] if self.first is None else self.first
            super().forward(*args[:CACHE], self.first, *args[STEP:])
            return super().forward(*args)

    return WritesIntoTheLayerBefore


def writes_behind_the_page(base):
    class WritesBehindThePage(base):
        def forward(self, *args):
            cache, page = args[CACHE], args[CACHE][0].numel()
            cache.as_strided((len(cache),), cache.stride()[:1], page).zero_()
            return super().forward(*args)

    return WritesBehindThePage


def copies_the_cache(base):
    """Return a fault: the first block of a request is read from a copy, whatever is written."""

    class CopiesTheCache(base):
        copied = None

        def forward(self, *args):
            self.copied = self.copied or {}
            first = args[STEP].block_table[args[STEP].seq_lens > self.shape.block_size, 0].tolist()
            for block_id in set(first) & set(self.copied):
                args[CACHE][block_id] = self.copied[block_id]
            out = super().forward(*args)
            for block_id in first:
                self.copied.setdefault(block_id, args[CACHE][block_id].clone())
            return out

    return CopiesTheCache


def keeps_the_first_step(base):
    """Return a fault: like a buffer that is filled at capture and never again."""

    class KeepsTheFirstStep(base):
        first = None

        def prepare(self, step):
            if step.seq_lens_host:
                return super().prepare(step)
            self.first = self.first or replace(step, seq_lens=step.seq_lens.clone())
            return super().prepare(self.first)

    return KeepsTheFirstStep


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
PAGES = "test_pages_may_be_padded"
OUTSIDE = "test_a_write_from_outside_is_seen_after_forget_context"
SINGLE = "test_a_captured_step_of_single_tokens_is_replayed"
WHOLE = "test_a_captured_step_of_any_tokens_is_replayed"
UNDECLARED = "test_the_declared_sizes_work of what is not declared"


def arguments_of(name, kit):
    """Return the arguments of a parametrized test of the kit; the others have none."""
    cases = {
        SIZES_WORK: kit.sizes,
        TYPES_WORK: ("float32", "float32"),
        CHUNKED: 7,
        PADDING: Padding(2, 2),
        PAGES: 2,
        SINGLE: kit.sizes,
        WHOLE: kit.sizes,
    }
    return (cases[name],) if name in cases else ()


MODULES = (kv_backend_contract, kv_backend_checks, kv_backend_scene)
RAGGED = "KVBackendContract._check_ragged"

# Fault, test of the kit that rejects it, and its check or that of another function.
FAULTS = {
    **{f"call {n} of the sizes": (wrong_at(n), SIZES_WORK, RAGGED, n) for n in (1, 2)},
    "sizes": (wrong_at(1), SIZES_WORK, 1),
    **{f"call {n} of the types": (wrong_at(n), TYPES_WORK, n) for n in (1, 2)},
    "chunks": (wrong_at(3), CHUNKED, 1),
    **{f"call {n} of a mixture": (wrong_at(n), MIXED, n) for n in (1, 2, 3)},
    "prefix 1": (wrong_at(2), PREFIX, 1),
    "prefix 2": (wrong_at(3), PREFIX, 2),
    "shared block": (stray_at(3, is_shared=True), PREFIX, 3),
    "order": (on_output(numbers_its_rows), ORDER, 1),
    **{f"call {n} of padding": (wrong_at(n), PADDING, n) for n in (1, 2)},
    "stray padding": (stray_at(2), PADDING, 3),
    "padding in the last block": (on_step(pads_into_the_last_block), PADDING, 1),
    "stray slots": (stray_at(2), SLOTS, 1),
    "neighbouring slots": (on_step(writes_to_the_neighbour), SLOTS, 1),
    "tokens outermost": (tokens_outermost, BLOCK, 1),
    "halves outermost": (halves_outermost, BLOCK, 2),
    "first scale": (keeps_the_first_scale, LAYERS, 1),
    "layer before": (writes_into_the_layer_before, LAYERS, 2),
    "padded pages": (wrong_at(1), PAGES, 1),
    "behind the page": (writes_behind_the_page, PAGES, 2),
    **{f"call {n} before a write": (wrong_at(n + 1), OUTSIDE, 1) for n in (1, 2)},
    "copied cache": (copies_the_cache, OUTSIDE, 2),
    **{f"single tokens {n}": (wrong_at(n), SINGLE, n) for n in range(1, 7)},
    **{f"any tokens {n}": (wrong_at(n), WHOLE, n) for n in range(1, 5)},
    "first step of single tokens": (keeps_the_first_step, SINGLE, 3),
    "first step of any tokens": (keeps_the_first_step, WHOLE, 2),
    "slightly off": (on_output(lambda out, args: out + 1e-4), SIZES_WORK, RAGGED, 1),
    "fifth request": (on_output(wrong_for_the_fifth), SIZES_WORK, RAGGED, 1),
    "hidden values": (on_output(hides_what_it_reads), SIZES_WORK, RAGGED, 1),
    "one too few": (on_step(reads_one_too_few), SIZES_WORK, RAGGED, 2),
    "one too many": (on_step(reads_one_too_many), SIZES_WORK, RAGGED, 1),
    "neighbouring block": (on_step(writes_to_the_neighbour), SIZES_WORK, RAGGED, 1),
    "forgotten prefix": (on_step(forgets_the_context), PREFIX, 1),
    "forgotten context": (on_step(forgets_the_context), MIXED, 3),
    "forgotten chunk": (on_step(forgets_the_context), CHUNKED, 1),
    "a row of the step": (wrong_at(1), SIZES_WORK, "KVBackendChecks._check", 1),
    "a stray write": (stray_at(2), SLOTS, "KVBackendChecks._check_writes", 1),
    "undeclared": (wrong_at(1), UNDECLARED, "KVBackendChecks._scene", 1),
    "difference": (wrong_at(1), SIZES_WORK, "assert_close", 2),
    "no heads": (on_output(lambda out, args: out[:, 1:]), LAYERS, "assert_close", 1),
    "attended": (on_output(lambda out, args: out[:-1]), SIZES_WORK, "KVBackendScene.attend", 1),
    "no last row": (on_output(lambda out, args: out[:-1]), SIZES_WORK, "assert_like", 1),
    "no padding": (on_output(drops_the_padding), PADDING, "assert_like", 1),
    "in double": (on_output(lambda out, args: out.double()), SIZES_WORK, "assert_like", 2),
}


def faults_of(kit):
    """Return the faults with those whose numbers depend on the lengths that the kit tries."""
    longest, num_contexts = max(kit.contract.ragged_lengths), len(kit.contract.uneven_lengths)
    limit = max(kit.contract.uneven_lengths) - 1
    return FAULTS | {
        "longest prompt": (wrong_beyond(longest - 1), SIZES_WORK, RAGGED, 1),
        "beyond the longest prompt": (wrong_beyond(longest), SIZES_WORK, RAGGED, 2),
        "uneven 1": (wrong_at(num_contexts + 1), UNEVEN, 1),
        "uneven 2": (wrong_at(num_contexts + 2), UNEVEN, 2),
        "long context": (wrong_beyond(limit), UNEVEN, 1),
    }


def check_of(name, *where):
    return Check(*where) if len(where) == 2 else Check(f"KVBackendContract.{name}", *where)


def run(kit, broken, name):
    if name == UNDECLARED:
        kit.of(broken).test_the_declared_sizes_work(kit.undeclared)
    else:
        getattr(kit.of(broken), name)(*arguments_of(name, kit))


@pytest.mark.parametrize("name", [n for n in vars(KVBackendContract) if n.startswith("test_")])
def test_a_right_backend_passes(kit, name):
    run(kit, kit.right, name)


@pytest.mark.parametrize("fault", faults_of(KITS["mla"]))
def test_a_broken_backend_is_rejected_by_the_check_that_is_meant_for_it(kit, fault):
    broken, name, *where = faults_of(kit)[fault]
    found = rejecting(partial(run, kit, broken(kit.right), name), *MODULES)
    assert check_of(name, *where) in found


def test_every_check_of_the_kit_rejects_a_broken_backend(kit):
    proved = {check_of(name, *where) for _, name, *where in faults_of(kit).values()}
    assert checks(*MODULES) == proved


def test_a_long_context_is_longer_than_any_tile_of_a_kernel():
    assert max(KITS["attention"].contract.uneven_lengths) > 256
    assert max(KITS["mla"].contract.uneven_lengths) > 128


def test_a_test_class_may_have_a_tolerance_of_its_own(kit):
    class Exact(type(kit.of(kit.right))):
        def tolerance(self, sizes):
            return 0.0

    with pytest.raises(
        AssertionError, match=r"row . of the step is off by .*at most 0e\+00 is allowed"
    ):
        Exact().test_the_declared_sizes_work(kit.sizes)


def test_a_tolerance_is_that_of_the_coarser_type(kit):
    scene = kit.scene(kit.right, kit.sizes)
    scene.sizes = replace(kit.sizes, kv_dtype="bfloat16")
    expected = torch.zeros(1, 4, 32)
    contract = kit.of(kit.right)
    contract._check(scene, [(expected + 0.02, expected)])
    with pytest.raises(AssertionError, match=r"row 0 of the step is off by 4\.00e-02"):
        contract._check(scene, [(expected + 0.04, expected)])


def test_a_rejection_says_what_nan_means(kit):
    with pytest.raises(AssertionError, match=r"nan.*: it read memory that was never written"):
        run(kit, on_step(reads_one_too_many)(kit.right), SIZES_WORK)


@pytest.mark.parametrize("padding", [Padding(0, 3), Padding(2, 2)])
def test_padding_in_the_block_of_a_request_is_noticed(kit, padding):
    broken = kit.of(on_step(pads_into_the_last_block)(kit.right))
    with pytest.raises(AssertionError):
        broken.test_padding_writes_to_the_null_block_only(padding)


def cases_of(kit, name, num_cases=None, **capabilities):
    asked = AskedCases(name)
    contract = kit.of(kit.right, **capabilities)
    type(contract).num_cases = num_cases
    contract.pytest_generate_tests(asked)
    return asked.cases


def test_cases_are_tried_as_declared(kit):
    assert cases_of(kit, "sizes")[0].block_size == 16
    assert cases_of(kit, "types") == [("float32", "float32")]
    assert cases_of(kit, "page_padding") == [1, 7, 64]
    assert cases_of(kit, "page_padding", padded_pages=False) == []
    assert {1, 7, 16} <= set(cases_of(kit, "chunk"))
    assert cases_of(kit, "something else") is None


def test_types_are_tried_in_every_declared_pair_the_closest_first(kit):
    types = frozenset({"float32", "bfloat16"})
    found = cases_of(kit, "types", dtypes=types, kv_dtypes=types)
    assert found[0] == ("float32", "float32")
    assert len(set(found)) == 4
    first = cases_of(kit, "sizes", dtypes=frozenset({"bfloat16"}))[0]
    assert (first.dtype, first.kv_dtype) == ("bfloat16", "float32")


@pytest.mark.parametrize(
    ("graphs", "is_single", "is_whole"),
    [("none", False, False), ("decode", True, False), ("full", True, True)],
)
def test_captured_steps_are_tried_as_declared(kit, graphs, is_single, is_whole):
    assert bool(cases_of(kit, "captured", graphs=graphs)) is is_single
    assert bool(cases_of(kit, "captured_whole", graphs=graphs)) is is_whole


@pytest.mark.parametrize(
    ("num_cases", "tried"), [(None, [1, 7, 64]), (1, [1]), (2, [1, 64]), (9, [1, 7, 64])]
)
def test_num_cases_limits_the_cases_that_are_tried(kit, num_cases, tried):
    assert cases_of(kit, "page_padding", num_cases) == tried


def test_scenes_allocate_blocks_in_random_order_and_none_twice(kit):
    scene = kit.scene(kit.right, kit.sizes)
    scene.outputs([(scene.add(50), 50), (scene.add(40), 40)])
    given = [block_id for request in scene.requests for block_id in request.block_ids]
    assert len(set(given)) == 7
    assert 0 not in given
    assert given not in (sorted(given), sorted(given, reverse=True))


def test_scenes_pad_with_nan_and_with_requests_of_no_tokens(kit):
    scene = kit.scene(kit.right, kit.sizes)
    scene.add(5)
    assert all(rows[3:].isnan().all() for rows in scene.inputs([(0, 3)], 2))
    assert scene.positions([(0, 3)], 2).tolist() == [0, 1, 2, 0, 0]
    layout = scene.layout([(0, 3)], Padding(2, 2))
    assert layout.query_start.tolist() == [0, 3, 3, 3]
    assert layout.seq_lens.tolist() == [3, 0, 0]
    assert layout.block_table[1:].tolist() == [[0], [0]]
    assert layout.slot_mapping[3:].tolist() == [0, 0]
    assert (layout.query_lens_host, layout.seq_lens_host) == ([3], [3])


def test_scenes_poison_unwritten_memory(kit):
    scene = kit.scene(kit.right, replace(kit.sizes, num_padding_rows=1))
    assert scene.kv_cache.isnan().all()
    assert scene.raw.shape[1] == scene.page_bytes + scene.spec.row_bytes
    assert isinstance(scene.backend, kit.right)
