"""Masks of the engine have a bit for each token, and those of grammars bind them."""

import pytest

from quire.engine.row_masks import only, within, without
from quire.messages import RowBitmask


def allowed(mask, vocab_size):
    bits = int.from_bytes(mask.words, "little")
    return {token_id for token_id in range(vocab_size) if bits >> token_id & 1}


@pytest.mark.parametrize("vocab_size", [1, 32, 33, 100])
def test_a_mask_leaves_one_token_or_all_but_some(vocab_size):
    last = vocab_size - 1
    for mask in (only(last, 3, vocab_size), without([last], 3, vocab_size)):
        assert (mask.slot, mask.sample, len(mask.words) % 4) == (3, 0, 0)
        assert len(mask.words) * 8 >= vocab_size
    assert allowed(only(last, 3, vocab_size), vocab_size) == {last}
    assert allowed(without([last, 0], 3, vocab_size), vocab_size) == {*range(1, last)}


def test_a_row_has_one_mask_and_the_grammar_binds():
    grammars = [only(5, 0, 64), without([5], 1, 64), only(5, 2, 64), RowBitmask(2, 1, b"")]
    own = [only(6, 1, 64), only(6, 2, 64), only(6, 3, 64)]
    found = {(mask.slot, mask.sample): mask for mask in within(own, grammars)}
    assert len(within(own, grammars)) == len(found) == 5
    assert [allowed(found[slot, 0], 64) for slot in range(4)] == [{5}, {6}, {5}, {6}]
