"""Rows that are written to a cache are read back, for every element type."""

import pytest
import torch
from kv_pages import KV_DTYPES, NUM_BLOCKS, numbers_at, pages_of, shape_of

from quire.interfaces.attention import AttentionLayerParams
from quire.testing.attention.attention_truth import kv_round_trip
from quire_attention_backends.shared.cache_rows import CacheRows
from quire_attention_backends.torch.kept_rows import float8_codes, int8_codes, read_rows, write_rows

SLOTS = torch.tensor([0, 7, 17, 33, 95])
LAYER = AttentionLayerParams(0.1, k_scale=0.3, v_scale=2.0)


def written(kv_dtype, padding=0):
    shape = shape_of(kv_dtype)
    pages, raw = pages_of(shape, padding)
    rows = CacheRows.of(pages, shape)
    k, v = torch.randn(2, len(SLOTS), 2, 64, generator=torch.Generator().manual_seed(2))
    at = rows.of_slots(SLOTS)
    new = write_rows(pages, rows, at, k, v, LAYER)
    return pages, rows, at, (k, v), new, raw


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_rows_are_kept_by_the_definition(kv_dtype, padding):
    pages, rows, at, (k, v), _, _ = written(kv_dtype, padding)
    expected = torch.stack((kv_round_trip(k, kv_dtype, 0.3), kv_round_trip(v, kv_dtype, 2.0)))
    found = numbers_at(pages, SLOTS, LAYER)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)
    gathered = pages.data.new_empty(len(at), 64)
    read = read_rows(pages, rows, at, gathered, LAYER)
    assert torch.equal(read.float().view_as(found), found)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_only_the_rows_asked_for_are_written(kv_dtype):
    *_, raw = written(kv_dtype, 5)
    touched = set((SLOTS // 16).tolist())
    assert set(raw.any(1).nonzero().flatten().tolist()) == touched
    page = raw.shape[1] - 5 * (raw.shape[1] // (5 + 2 * 2 * 16))
    assert not raw[:, page:].any()
    assert len(raw) == NUM_BLOCKS


def test_plain_rows_come_back_as_they_are_kept():
    pages, rows, at, (k, v), new, _ = written("bfloat16")
    assert new.dtype == torch.bfloat16
    assert torch.equal(new.view(2, len(SLOTS), 2, 64), torch.stack((k, v)).bfloat16())
    gathered = pages.data.new_empty(len(at), 64)
    read = read_rows(pages, rows, at, gathered, LAYER)
    assert torch.equal(read, new)
    assert read.data_ptr() == gathered.data_ptr()


def test_values_too_large_for_float8_become_its_maximum():
    codes = float8_codes(torch.tensor([1e6, -1e6, 448.0, 300.0]), 0.5)
    assert codes.view(torch.float8_e4m3fn).tolist() == [448.0, -448.0, 448.0, 448.0]


def test_half_precision_is_widened_before_it_is_coded():
    x = torch.full((1, 64), 3.0, dtype=torch.float16)
    x[0, 0] = 6.1e4  # 6.1e4 / 127 is no float16
    codes, scales = int8_codes(x)
    assert scales.dtype == torch.float32
    assert codes[0, :2].tolist() == [127, 0]
