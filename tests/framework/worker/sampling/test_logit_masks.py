"""Forbidden tokens get -inf, and no other logit changes."""

import pytest
import torch
from sampler_parts import bitmask, tables_with

from quire.layers import SingleDevice
from quire.layers.vocabulary import VocabularyShard
from quire.worker.sampling.logit_masks import LogitMasks

VOCAB_SIZE = 75  # not a multiple of a word


def logits_of(num_rows):
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kernels", ["torch", "triton", "native"])
def test_grammars_leave_what_they_allow(kernels):
    masks = LogitMasks(tables_with([{}] * 4), kernels)
    logits = logits_of(3)
    allowed = {3: [0, 31, 32, 74], 0: [5]}
    given = [bitmask(slot, tokens, VOCAB_SIZE) for slot, tokens in allowed.items()]
    elsewhere = bitmask(1, [1], VOCAB_SIZE)
    out = logits.clone()
    masks.mask_grammars(out, [3, 2, 0], [*given, elsewhere])
    expected = torch.full_like(logits, -torch.inf)
    expected[0, allowed[3]] = logits[0, allowed[3]]
    expected[1] = logits[1]
    expected[2, allowed[0]] = logits[2, allowed[0]]
    assert torch.equal(out, expected)


def test_a_mask_that_is_too_short_is_refused():
    masks = LogitMasks(tables_with([{}]), "torch")
    with pytest.raises(ValueError, match="64 bits for 75 tokens"):
        masks.mask_grammars(logits_of(1), [0], [bitmask(0, [1], 64)])


def test_completions_end_no_sooner_than_min_tokens():
    stops = {"stop_token_ids": (2, 7, VOCAB_SIZE + 3)}  # the last one no row has
    requests = [
        {"min_tokens": 3, "num_generated": 2, **stops},
        {"min_tokens": 3, "num_generated": 3, **stops},
        {"min_tokens": 3},
        {"min_tokens": 1, **stops},
        {"min_tokens": 1, **stops},
    ]
    masks = LogitMasks(tables_with(requests), "torch")
    logits = logits_of(5)
    out = logits.clone()
    masks.mask_stops(out, [4, 3, 2, 1, 0], grammar_slots={4})
    expected = logits.clone()
    expected[[1, 1, 4, 4], [2, 7, 2, 7]] = -torch.inf
    assert torch.equal(out, expected)
    assert [masks.is_too_short(slot) for slot in range(5)] == [True, False, False, True, True]


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_a_mask_of_just_as_many_bits_as_there_are_tokens_will_do(kernels):
    masks = LogitMasks(tables_with([{}]), kernels)
    logits = torch.zeros(1, 64)
    masks.mask_grammars(logits, [0], [bitmask(0, [1, 63], 64)])
    assert logits.isfinite().nonzero().tolist() == [[0, 1], [0, 63]]


def test_stops_of_a_row_with_a_grammar_are_the_grammars_business():
    stops = {"min_tokens": 3, "stop_token_ids": (2,)}
    masks = LogitMasks(tables_with([stops, stops]), "torch")
    logits = torch.zeros(2, VOCAB_SIZE)
    masks.mask_stops(logits, [1, 0], grammar_slots={1})
    assert logits.isinf().nonzero().tolist() == [[1, 2]]


def test_no_stop_is_masked_where_none_is_within_the_vocabulary():
    masks = LogitMasks(tables_with([{"min_tokens": 3, "stop_token_ids": (VOCAB_SIZE,)}]), "torch")
    logits = torch.zeros(1, VOCAB_SIZE)
    masks.mask_stops(logits, [0], set())
    assert not logits.any()


def shards(vocab_size, tp_size):
    class Rank(SingleDevice):
        def __init__(self, rank):
            self.rank, self.size = rank, tp_size

    return [VocabularyShard(vocab_size, Rank(rank)) for rank in range(tp_size)]


@pytest.mark.parametrize("kernels", ["torch", "triton", "native"])
@pytest.mark.parametrize(("vocab_size", "tp_size"), [(75, 2), (75, 4), (64, 2), (128, 4), (65, 3)])
def test_each_shard_is_masked_like_its_part_of_the_whole(kernels, vocab_size, tp_size):
    stopping = {"min_tokens": 3, "stop_token_ids": (0, 20, 63)}
    masks = LogitMasks(tables_with([{}, stopping, {}]), kernels)
    logits = torch.zeros(3, vocab_size)
    tokens = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(3))[
        : vocab_size // 2
    ]
    given = [bitmask(2, tokens.tolist(), vocab_size), bitmask(0, [vocab_size - 1], vocab_size)]
    whole = logits.clone()
    masks.mask_grammars(whole, [0, 1, 2], given)
    masks.mask_stops(whole, [0, 1, 2], {0, 2})
    assert whole[1].isinf().nonzero().flatten().tolist() == [0, 20, 63]
    for shard in shards(vocab_size, tp_size):
        mine = slice(shard.token_ids.start, shard.token_ids.stop)
        found = logits[:, mine].clone()
        masks.mask_grammars(found, [0, 1, 2], given, shard)
        masks.mask_stops(found, [0, 1, 2], {0, 2}, shard)
        assert torch.equal(found, whole[:, mine])
