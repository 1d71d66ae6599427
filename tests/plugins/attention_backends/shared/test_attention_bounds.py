"""Attention bounds: the mask and the first key agree with the definition."""

import numpy as np
import pytest
import torch

from quire_attention_backends.shared.attention_bounds import AttentionBounds


def seen(bounds, query, length=12):
    """Return the keys that a query attends to, by the definition."""
    chunk = bounds.chunk or length
    return [
        key
        for key in range(length)
        if key <= query
        and key > query - (bounds.window or length)
        and key // chunk == query // chunk
    ]


@pytest.mark.parametrize("window", [None, 1, 3, 8, 20])
@pytest.mark.parametrize("chunk", [None, 1, 4, 5, 20])
def test_the_mask_and_the_first_key_are_those_of_the_definition(window, chunk):
    bounds = AttentionBounds(window, chunk)
    is_hidden = bounds.hidden_mask(torch.arange(12), torch.arange(12).unsqueeze(1))
    first_keys = bounds.first_key(np.arange(12))
    for query in range(12):
        keys = seen(bounds, query)
        assert (~is_hidden[query]).nonzero().flatten().tolist() == keys
        assert first_keys[query] == keys[0]
