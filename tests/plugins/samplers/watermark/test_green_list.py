"""Green lists: their size, and what they depend on."""

import pytest
import torch

from quire_samplers.plugin import MAX_CONTEXT_WIDTH
from quire_samplers.watermark.green_list import context_seeds, is_green

VOCAB_SIZE = 20_000
TOKENS = torch.arange(VOCAB_SIZE)


def green(context, *, key=7, width=1, ratio=0.25):
    contexts = torch.zeros(1, MAX_CONTEXT_WIDTH, dtype=torch.int64)
    contexts[0, MAX_CONTEXT_WIDTH - len(context) :] = torch.tensor(context)
    seeds = context_seeds(torch.tensor([key]), contexts, torch.tensor([width]))
    return is_green(seeds.unsqueeze(1), TOKENS, torch.tensor([[ratio]]))[0]


def overlap(first, second):
    return float((first & second).float().mean())


@pytest.mark.parametrize("ratio", [0.01, 0.25, 0.5, 0.99])
def test_the_ratio_is_the_part_of_the_vocabulary_that_is_green(ratio):
    sizes = torch.stack([green([token], ratio=ratio).float().mean() for token in range(50)])
    deviation = (ratio * (1 - ratio) / VOCAB_SIZE) ** 0.5
    assert (sizes - ratio).abs().max() < 4.5 * deviation
    assert abs(sizes.mean() - ratio) < 4.5 * deviation / 50**0.5


def test_lists_of_other_contexts_and_keys_are_independent():
    own = green([5])
    for other in (green([6]), green([5], key=8), green([5, 5], width=2), green([5], key=2**63 - 1)):
        assert abs(overlap(own, other) - 1 / 16) < 4.5 * (1 / 16 * 15 / 16 / VOCAB_SIZE) ** 0.5


def test_only_the_tokens_of_the_context_count_and_their_order():
    assert torch.equal(green([1, 2, 3], width=2), green([9, 2, 3], width=2))
    assert not torch.equal(green([1, 2, 3], width=3), green([9, 2, 3], width=3))
    assert not torch.equal(green([2, 3], width=2), green([3, 2], width=2))


def test_a_larger_ratio_keeps_what_was_green():
    assert not (green([4], ratio=0.25) & ~green([4], ratio=0.5)).any()
