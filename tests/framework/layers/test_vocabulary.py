"""The vocabulary over several devices: every token once, and the best one of all shards."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import SettingsError
from quire.layers import SingleDevice
from quire.layers.vocabulary import VocabularyShard
from quire.testing.model.threaded_ranks import run_ranks

SIZES = pytest.mark.parametrize(
    ("vocab_size", "tp_size"), [(7, 1), (7, 2), (8, 2), (7, 3), (10, 4), (50_257, 4), (4, 4)]
)


@SIZES
def test_each_token_is_in_one_shard(vocab_size, tp_size):
    shards = run_ranks(tp_size, lambda group: VocabularyShard(vocab_size, group))
    found = [token_id for shard in shards for token_id in shard.token_ids]
    assert found == list(range(vocab_size))
    assert len({len(shard.rows) for shard in shards}) == 1
    assert all(shard.token_ids.start == shard.rows.start for shard in shards)
    assert [shard.is_whole for shard in shards] == [tp_size == 1] * tp_size


@SIZES
def test_every_rank_gathers_whole_rows(vocab_size, tp_size):
    logits = torch.randn(3, vocab_size)

    def gathered(group):
        shard = VocabularyShard(vocab_size, group)
        return shard.gather(logits[:, shard.token_ids.start : shard.token_ids.stop])

    assert all(torch.equal(found, logits) for found in run_ranks(tp_size, gathered))


@given(st.integers(1, 300), st.integers(1, 40))
def test_a_refused_size_names_the_largest_that_works(vocab_size, tp_size):
    def shards(size):
        return -(-vocab_size // size) * (size - 1) < vocab_size

    class Last(SingleDevice):
        rank, size = tp_size - 1, tp_size

    if shards(tp_size):
        assert VocabularyShard(vocab_size, Last()).token_ids
        return
    largest = max(size for size in range(1, tp_size) if shards(size))
    with pytest.raises(SettingsError, match=f"use {largest} or fewer"):
        VocabularyShard(vocab_size, Last())


SCORES = st.sampled_from([-torch.inf, -1.0, 0.0, 1.0, 1.0, 2.0, torch.inf, torch.nan])


@given(
    st.integers(1, 4).flatmap(
        lambda size: st.lists(st.lists(SCORES, min_size=size, max_size=size), min_size=1)
    )
)
def test_the_first_of_the_largest_scores_is_taken_on_every_rank(rows):
    scores = torch.tensor(rows)  # [N, tp]
    num_rows, tp_size = scores.shape

    def best(group):
        shard = VocabularyShard(100, group)
        token_ids = torch.arange(num_rows) % 3 + shard.token_ids.start
        return shard.best(scores[:, group.rank].contiguous(), token_ids), group.sent_bytes

    for (found, token_ids), sent_bytes in run_ranks(tp_size, best):
        winner = scores.argmax(1)
        expected = winner * -(-100 // tp_size) + torch.arange(num_rows) % 3
        assert token_ids.tolist() == expected.tolist()
        assert torch.equal(found.nan_to_num(5.0), scores.amax(1).nan_to_num(5.0))
        assert sent_bytes == [8 * num_rows]
