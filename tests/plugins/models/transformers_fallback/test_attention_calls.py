"""Kinds of masks, told apart by their functions."""

import pytest
import torch
from transformers.masking_utils import (
    and_masks,
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from quire.errors import UnsupportedModelError
from quire_models.transformers_fallback.attention_calls import MaskKind, mask_kind

NO_PADDING = torch.zeros(1, dtype=torch.int64)


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_window_includes_its_query(size):
    found = mask_kind(sliding_window_causal_mask_function(size), size)
    assert found == MaskKind("sliding_window", size)
    query = torch.tensor(100)
    allowed = [key for key in range(200) if found.allows(query, torch.tensor(key))]
    assert allowed == list(range(101 - size, 101))


@pytest.mark.parametrize("size", [2, 7, 64])
def test_chunks_begin_at_multiples_of_their_size(size):
    found = mask_kind(chunked_causal_mask_function(size, NO_PADDING), size)
    assert found == MaskKind("chunked_local_attention", size)


def test_the_whole_context_has_no_size():
    assert mask_kind(causal_mask_function, None) == MaskKind("full_attention")


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (bidirectional_mask_function, None),
        (sliding_window_bidirectional_mask_function(7), 7),
        (sliding_window_causal_mask_function(8), 7),
        (chunked_causal_mask_function(7, NO_PADDING), 8),
        (and_masks(causal_mask_function, lambda batch, head, query, key: key % 2 == 0), None),
        (sliding_window_causal_mask_function(7), None),
    ],
    ids=["both ways", "window both ways", "wider window", "shorter chunk", "sparse", "unnamed"],
)
def test_another_mask_is_refused(function, size):
    with pytest.raises(UnsupportedModelError, match="neither causal"):
        mask_kind(function, size)
