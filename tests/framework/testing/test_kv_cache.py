"""KV-cache spec conformance kit: every check rejects a broken spec."""

from functools import partial

import pytest
from kit_checks import Check, checks, rejecting

import quire.testing.kv_cache as kit
from quire.interfaces.kv_cache import KVLayer
from quire.testing.kv_cache import CHUNKS, KVCacheSpecContract
from quire_kv_cache_specs.cross_attention import CrossAttentionSpec
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.recurrent_state import RecurrentStateSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

PARAMS = (("window", 20), ("encoder_len", 20), ("state_shapes", ((4, 8),)))
LAYER = KVLayer("layers.0.attn", "full_attention", 4, 32, PARAMS)
WIDER = KVLayer("layers.1.attn", "full_attention", 4, 32, (("window", 40), *PARAMS[1:]))


class NoBytes(FullAttentionSpec):
    page_bytes = 0


class HalfARow(FullAttentionSpec):
    @property
    def page_bytes(self):
        return super().page_bytes + self.row_bytes // 2


class NarrowTypesTakeMore(FullAttentionSpec):
    @property
    def page_bytes(self):
        return super().page_bytes * (4 if self.kv_dtype == "int8" else 1)


class LongBlocksTakeLess(FullAttentionSpec):
    @property
    def page_bytes(self):
        return self.row_bytes * (128 - self.block_size)


class EachDeviceTakesMore(FullAttentionSpec):
    @property
    def page_bytes(self):
        return super().page_bytes * self.tp_size**2


class LosesBytes(FullAttentionSpec):
    @property
    def page_bytes(self):
        return super().page_bytes // self.tp_size


class KeyedByName(FullAttentionSpec):
    @property
    def key(self):
        return (*super().key, self.layer.name)


class KeyedByHeadSize(FullAttentionSpec):
    @property
    def key(self):
        return (*super().key, self.layer.head_dim)


class KeyedByAList(FullAttentionSpec):
    @property
    def key(self):
        return [*super().key]


class KeyWithoutBlockSize(FullAttentionSpec):
    @property
    def key(self):
        return (type(self), self.layer.params)


class WindowOfAnyClass(SlidingWindowSpec):
    @property
    def key(self):
        return (kit.WholeContext, self.block_size, self.layer.params)


class KeyWithoutParams(SlidingWindowSpec):
    @property
    def key(self):
        return (type(self), self.block_size)


class Named(FullAttentionSpec):
    """Right: its key has a name instead of the class."""

    @property
    def key(self):
        return ("named", self.block_size, self.layer.params)


class TurnsIntoAnother(Named):
    def with_block_size(self, block_size):
        return Named(self.layer, block_size, self.kv_dtype, self.tp_size)


class KeepsItsBlocks(FullAttentionSpec):
    def with_block_size(self, block_size):
        return self


class ForgetsItsType(FullAttentionSpec):
    def with_block_size(self, block_size):
        return type(self)(self.layer, block_size, "float32", self.tp_size)


class ForgetsItsDevices(FullAttentionSpec):
    def with_block_size(self, block_size):
        return type(self)(self.layer, block_size, self.kv_dtype)


class PagesWithAHead(FullAttentionSpec):
    @property
    def page_bytes(self):
        return super().page_bytes + self.row_bytes


class NeverShrinks(FullAttentionSpec):
    def with_block_size(self, block_size):
        return super().with_block_size(max(block_size, self.block_size))


class TakesMoreUnsought(FullAttentionSpec):
    def without_prefix_hits(self):
        return self.with_block_size(2 * self.block_size)


class Bare(FullAttentionSpec):
    is_bare = False

    def without_prefix_hits(self):
        bare = self.with_block_size(self.block_size)
        bare.is_bare = True
        return bare


class HoldsMoreUnsought(Bare):
    def max_blocks_held(self, num_tokens, max_step_tokens):
        return super().max_blocks_held(num_tokens, max_step_tokens) + self.is_bare


class PlansTooLittleUnsought(Bare):
    def max_blocks_held(self, num_tokens, max_step_tokens):
        return 0 if self.is_bare else super().max_blocks_held(num_tokens, max_step_tokens)


class NeedsLessInTheEnd(FullAttentionSpec):
    def blocks_needed(self, num_tokens, num_lookahead_tokens=0):
        return super().blocks_needed(num_tokens % 150, num_lookahead_tokens)


class LooksBack(FullAttentionSpec):
    def blocks_needed(self, num_tokens, num_lookahead_tokens=0):
        return (num_tokens + 15 - num_lookahead_tokens) // self.block_size


class NeedsLessThanNothing(FullAttentionSpec):
    def blocks_needed(self, num_tokens, num_lookahead_tokens=0):
        return super().blocks_needed(num_tokens, num_lookahead_tokens) - 1


class FreesWhatIsNotThere(FullAttentionSpec):
    def freeable_blocks(self, num_computed_tokens):
        return range(num_computed_tokens // self.block_size + 1, num_computed_tokens)


class TakesBlocksBack(FullAttentionSpec):
    def freeable_blocks(self, num_computed_tokens):
        return range(num_computed_tokens % 40 // self.block_size)


class FreesWhatIsNotFull(FullAttentionSpec):
    def freeable_blocks(self, num_computed_tokens):
        return range(self.blocks_needed(num_computed_tokens))


class KeepsWhatIsNotFull(FullAttentionSpec):
    def cacheable_blocks(self, fresh, num_computed_tokens):
        return range(fresh.start, self.blocks_needed(num_computed_tokens))


class KeepsBeyondItsTable(RecurrentStateSpec):
    """Has one state per request, but counts fresh blocks as if there were one per block."""

    def __init__(self, *args):
        super().__init__(*args)
        self.has_snapshots = False

    def cacheable_blocks(self, fresh, num_computed_tokens):
        return fresh


class KeepsForNothing(CrossAttentionSpec):
    """Keeps blocks that are never found."""

    def blocks_needed(self, num_tokens, num_lookahead_tokens=0):
        return self.blocks_of(num_tokens)

    def cacheable_blocks(self, fresh, num_computed_tokens):
        return fresh


class KeepsNothing(FullAttentionSpec):
    def cacheable_blocks(self, fresh, num_computed_tokens):
        return range(0)


class HoldsLessInTheEnd(FullAttentionSpec):
    def max_blocks_held(self, num_tokens, max_step_tokens):
        return 20 - num_tokens // self.block_size


class HoldsLessInLongSteps(FullAttentionSpec):
    def max_blocks_held(self, num_tokens, max_step_tokens):
        return 500 - max_step_tokens


class PlansTooLittle(FullAttentionSpec):
    def max_blocks_held(self, num_tokens, max_step_tokens):
        return self.blocks_needed(num_tokens) - 1


class PlansBeforeTheStep(FullAttentionSpec):
    """Plans the blocks held at the start of the last step."""

    def max_blocks_held(self, num_tokens, max_step_tokens):
        return self.blocks_needed((num_tokens - 1) // max_step_tokens * max_step_tokens)


class PlansTheWindowAlone(SlidingWindowSpec):
    def max_blocks_held(self, num_tokens, max_step_tokens):
        return min(self.blocks_of(num_tokens), self.max_blocks_under(self.window))


class FindsFiveAtMost(FullAttentionSpec):
    def cached_prefix(self, is_cached):
        return min(5, super().cached_prefix(is_cached))


class CountsPastAGap(FullAttentionSpec):
    def cached_prefix(self, is_cached):
        return sum(is_cached)


class GivesUpTooEarly(FullAttentionSpec):
    def cached_prefix(self, is_cached):
        return max(0, super().cached_prefix(is_cached) - 1)


class FindsNothingThere(FullAttentionSpec):
    def cached_prefix(self, is_cached):
        return super().cached_prefix(is_cached) if is_cached else 1


class LooksNoFurther(SlidingWindowSpec):
    """Finds hits behind a gap, but declares needs_whole_prefix."""

    needs_whole_prefix = True


ALIKE = "test_layers_that_use_blocks_alike_share_a_group"
OTHERWISE = "test_layers_that_use_blocks_differently_have_their_own_groups"
BLOCKS = "test_with_block_size_changes_the_block_size_only"
UNSOUGHT = "test_without_prefix_hits_it_holds_no_more"
NEEDED = "test_more_tokens_never_need_fewer_blocks"
FREEABLE = "test_what_is_freeable_exists_and_stays_freeable"
KEPT = "test_only_blocks_of_the_table_are_kept_for_hits"
HELD = "test_a_longer_request_never_holds_less"
LONGEST = "test_a_prefix_hit_is_the_longest_usable_one"

# Broken spec, test of the kit that rejects it, and number of the check in that test.
FAULTS = [
    (NoBytes, "test_a_page_is_a_whole_number_of_rows", 1),
    (HalfARow, "test_a_page_is_a_whole_number_of_rows", 2),
    (NarrowTypesTakeMore, "test_pages_do_not_shrink_with_what_they_hold", 1),
    (LongBlocksTakeLess, "test_pages_do_not_shrink_with_what_they_hold", 2),
    (EachDeviceTakesMore, "test_the_shards_of_a_page_hold_all_of_its_bytes", 1),
    (LosesBytes, "test_the_shards_of_a_page_hold_all_of_its_bytes", 2),
    (KeyedByName, ALIKE, 1),
    (KeyedByHeadSize, ALIKE, 1),
    (KeyedByAList, ALIKE, 2),
    (KeyWithoutBlockSize, OTHERWISE, 1),
    (WindowOfAnyClass, OTHERWISE, 2),
    (KeyWithoutParams, OTHERWISE, 3),
    (TurnsIntoAnother, BLOCKS, 1),
    (KeepsItsBlocks, BLOCKS, 2),
    (ForgetsItsType, BLOCKS, 3),
    (ForgetsItsDevices, BLOCKS, 3),
    (PagesWithAHead, BLOCKS, 4),
    (NeverShrinks, BLOCKS, 5),
    (TakesMoreUnsought, UNSOUGHT, 1),
    (HoldsMoreUnsought, UNSOUGHT, 2),
    (PlansTooLittleUnsought, UNSOUGHT, 3),
    (NeedsLessInTheEnd, NEEDED, 1),
    (LooksBack, NEEDED, 2),
    (NeedsLessThanNothing, NEEDED, 3),
    (FreesWhatIsNotThere, FREEABLE, 1),
    (TakesBlocksBack, FREEABLE, 2),
    (FreesWhatIsNotFull, FREEABLE, 3),
    (KeepsWhatIsNotFull, KEPT, 1),
    (KeepsBeyondItsTable, KEPT, 2),
    (KeepsForNothing, KEPT, 3),
    (KeepsNothing, "test_an_equal_prefix_is_found", 1),
    (HoldsLessInTheEnd, HELD, 1),
    (HoldsLessInLongSteps, HELD, 2),
    (PlansTooLittle, "test_no_request_holds_more_than_was_planned", 1),
    (PlansBeforeTheStep, "test_no_request_holds_more_than_was_planned", 1),
    (PlansTheWindowAlone, "test_no_request_holds_more_than_was_planned", 1),
    (CountsPastAGap, LONGEST, 1),
    (FindsFiveAtMost, LONGEST, 1),
    (GivesUpTooEarly, LONGEST, 1),
    (FindsNothingThere, LONGEST, 2),
    (LooksNoFurther, "test_needs_whole_prefix_matches_the_hits", 1),
]
HELPERS = {Check("_check_rising", 1), Check("_check_plan", 1)}  # called by checks of the tests
RIGHT = {
    FullAttentionSpec: True,
    SlidingWindowSpec: True,
    RecurrentStateSpec: True,
    CrossAttentionSpec: False,
    Named: True,
}


def contract(its_class):
    class Contract(KVCacheSpecContract):
        spec_class = its_class
        layer = LAYER
        has_prefix_hits = not issubclass(its_class, CrossAttentionSpec)
        other_layers = (WIDER,)

    return Contract()


def runs(its_class, name):
    """Return one callable for each case of a test of the kit."""
    kit_of_it = contract(its_class)
    test = getattr(kit_of_it, name)
    wanted = test.__func__.__code__.co_varnames[1 : test.__func__.__code__.co_argcount]
    cases = [{}]
    if "spec" in wanted:
        cases = [{"spec": kit_of_it._spec(block_size=size)} for size in kit_of_it.block_sizes]
    if "chunk" in wanted:
        cases = [case | {"chunk": chunk} for case in cases for chunk in CHUNKS]
    return [partial(test, **case) for case in cases]


def run_all(its_class, name):
    for run in runs(its_class, name):
        run()


def kit_tests():
    return [name for name in vars(KVCacheSpecContract) if name.startswith("test_")]


@pytest.mark.parametrize("right", RIGHT)
@pytest.mark.parametrize("name", kit_tests())
def test_a_right_spec_passes(right, name):
    run_all(right, name)


@pytest.mark.parametrize(("broken", "name", "number"), FAULTS)
def test_a_broken_spec_is_rejected_by_the_check_that_is_meant_for_it(broken, name, number):
    found = rejecting(partial(run_all, broken, name), kit)
    assert Check(f"KVCacheSpecContract.{name}", number) in found


def test_every_check_of_the_kit_rejects_a_broken_spec():
    proved = {Check(f"KVCacheSpecContract.{name}", number) for _, name, number in FAULTS}
    assert checks(kit) == proved | HELPERS


def test_a_rejection_says_what_is_wrong():
    with pytest.raises(AssertionError, match=r"in steps of 1 tokens, 13 blocks are held .* is 12"):
        contract(PlansTooLittle).test_no_request_holds_more_than_was_planned(
            PlansTooLittle(LAYER, 16, "float32"), 1
        )
