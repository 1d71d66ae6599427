"""The conformance kit of KV-cache specs notices specs that are wrong."""

import pytest

from quire.interfaces.kv_cache import KVLayer
from quire.testing.kv_cache import KVCacheSpecContract
from quire_kv_cache_specs.full_attention import FullAttentionSpec

LAYER = KVLayer("layers.0.attn", "full_attention", num_kv_heads=4, head_dim=32)


def contract(broken):
    class Contract(KVCacheSpecContract):
        spec_class = broken
        layer = LAYER

    return Contract()


def spec(broken):
    return broken(LAYER, 16, "float32")


class LosesBytes(FullAttentionSpec):
    @property
    def page_bytes(self):
        return super().page_bytes // self.tp_size


class RoundsDown(FullAttentionSpec):
    def blocks_needed(self, num_tokens, num_lookahead_tokens=0):
        return (num_tokens - num_lookahead_tokens) // self.block_size


class FreesWhatIsNotThere(FullAttentionSpec):
    def freeable_blocks(self, num_computed_tokens):
        return range(num_computed_tokens)


class TakesBlocksBack(FullAttentionSpec):
    def freeable_blocks(self, num_computed_tokens):
        return range(num_computed_tokens % 20 // self.block_size)


class PlansTooLittle(FullAttentionSpec):
    def max_blocks_held(self, num_tokens, max_step_tokens):
        return 3


class CountsPastAGap(FullAttentionSpec):
    def cached_prefix(self, is_cached):
        return sum(is_cached)


class GivesUpTooEarly(FullAttentionSpec):
    def cached_prefix(self, is_cached):
        return max(0, super().cached_prefix(is_cached) - 1)


class HitsBehindAGap(FullAttentionSpec):
    def cached_prefix(self, is_cached):
        return len(is_cached) if is_cached[-1:] == [True] else 0


class KeepsWhatIsNotFull(FullAttentionSpec):
    def cacheable_blocks(self, fresh, num_computed_tokens):
        return range(fresh.start, fresh.stop + 1)


class HoldsLessInTheEnd(FullAttentionSpec):
    def max_blocks_held(self, num_tokens, max_step_tokens):
        return 20 - num_tokens // self.block_size


class ForgetsItsBlocks(FullAttentionSpec):
    def with_block_size(self, block_size):
        return self


class HoldsMoreForNobody(FullAttentionSpec):
    is_bare = False

    def without_prefix_hits(self):
        bare = self.with_block_size(self.block_size)
        bare.is_bare = True
        return bare

    def max_blocks_held(self, num_tokens, max_step_tokens):
        return super().max_blocks_held(num_tokens, max_step_tokens) + self.is_bare


class KeyedByName(FullAttentionSpec):
    @property
    def key(self):
        return (*super().key, self.layer.name)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (LosesBytes, "test_devices_share_the_bytes_and_lose_none"),
        (KeyedByName, "test_layers_that_use_blocks_alike_share_a_group"),
    ],
)
def test_a_wrong_size_is_noticed(broken, test):
    getattr(contract(FullAttentionSpec), test)()
    with pytest.raises(AssertionError):
        getattr(contract(broken), test)()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (RoundsDown, "test_more_tokens_never_need_fewer_blocks"),
        (FreesWhatIsNotThere, "test_what_is_freeable_exists_and_stays_freeable"),
        (TakesBlocksBack, "test_what_is_freeable_exists_and_stays_freeable"),
        (CountsPastAGap, "test_a_prefix_hit_is_the_longest_that_can_go_on"),
        (GivesUpTooEarly, "test_a_prefix_hit_is_the_longest_that_can_go_on"),
        (HitsBehindAGap, "test_a_hit_that_ends_at_the_first_gap_says_so"),
        (KeepsWhatIsNotFull, "test_only_blocks_of_the_table_are_kept_for_hits"),
        (HoldsLessInTheEnd, "test_a_longer_request_never_holds_less"),
        (ForgetsItsBlocks, "test_other_blocks_are_the_only_change_of_other_blocks"),
        (HoldsMoreForNobody, "test_without_prefix_hits_it_holds_no_more"),
    ],
)
def test_wrong_arithmetic_is_noticed(broken, test):
    getattr(contract(FullAttentionSpec), test)(spec(FullAttentionSpec))
    with pytest.raises(AssertionError):
        getattr(contract(broken), test)(spec(broken))


def test_a_plan_that_is_too_small_is_noticed():
    with pytest.raises(AssertionError, match="planned 3"):
        contract(PlansTooLittle).test_no_request_holds_more_than_was_planned(
            spec(PlansTooLittle), 16
        )
