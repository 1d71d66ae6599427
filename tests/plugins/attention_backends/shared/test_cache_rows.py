"""Row indices of the cache agree with its view, with padding between pages and without."""

import pytest
import torch

from quire.interfaces.attention import AttentionShape
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.shared.kv_layout import Pages

SIZES = (5, 2, 3, 4, 8)  # B, 2, K, S, D


def shape():
    return AttentionShape(
        num_heads=6,
        num_kv_heads=3,
        head_dim=8,
        block_size=4,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_blocks_per_request=5,
        dtype=torch.float32,
        kv_dtype="float32",
        device=torch.device("cpu"),
    )


def view(padding):
    page = 2 * 3 * 4 * 8
    numbers = torch.arange(5 * (page + padding) + 16.0)[16:].view(5, page + padding)
    return numbers[:, :page].view(SIZES)


@pytest.mark.parametrize("padding", [0, 8, 56, 192])
def test_a_row_is_the_vector_of_a_head(padding):
    cache = view(padding)
    rows = CacheRows.of(Pages(cache, None, "plain"), shape())
    flat = rows.flat(cache)
    slots = torch.tensor([0, 7, 13, 19])
    written = flat[rows.of_slots(slots)].view(2, len(slots), 3, 8)
    for index, slot in enumerate(slots.tolist()):
        assert torch.equal(written[:, index], cache[slot // 4, :, :, slot % 4])


def test_rows_end_with_the_last_page_without_its_padding():
    page, padding = 2 * 3 * 4 * 8, 56
    numbers = torch.arange(float(4 * (page + padding) + page))
    cache = numbers.as_strided(SIZES, (page + padding, 96, 32, 8, 1))
    flat = CacheRows.of(Pages(cache, None, "plain"), shape()).flat(cache)
    assert torch.equal(flat[-1], numbers[-8:])


@pytest.mark.parametrize("padding", [0, 24])
def test_tokens_are_found_by_the_block_table(padding):
    cache = view(padding)
    rows = CacheRows.of(Pages(cache, None, "plain"), shape())
    table = torch.tensor([[3, 1], [2, 4]], dtype=torch.int32)
    found = rows.of_positions(table, torch.tensor([[0, 5], [3, 7]]))
    expected = torch.stack(
        [cache[3, 0, 0, 0], cache[1, 0, 0, 1], cache[2, 0, 0, 3], cache[4, 0, 0, 3]]
    )
    assert torch.equal(rows.flat(cache)[found.view(-1)], expected)
