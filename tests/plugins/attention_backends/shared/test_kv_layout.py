"""All backends have the same page layout; errors about unsuitable pages name the layer."""

from dataclasses import replace

import pytest
import torch

from quire.errors import RefusedError
from quire.interfaces.attention import AttentionShape
from quire.interfaces.kv_cache import KVLayer
from quire_attention_backends.shared.kv_layout import DTYPES, PagesBackend, kind_of, split_pages
from quire_kv_cache_specs.full_attention import FullAttentionSpec

B, K, S, D = 5, 3, 8, 24
SHAPE = AttentionShape(
    num_heads=6,
    num_kv_heads=K,
    head_dim=D,
    block_size=S,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_blocks_per_request=5,
    dtype=torch.float32,
    kv_dtype="float32",
    device=torch.device("cpu"),
)


class Mine(PagesBackend):
    name = "mine"


def spec(kv_dtype, head_dim=D):
    return FullAttentionSpec(KVLayer("layers.0.attn", "full_attention", K, head_dim), S, kv_dtype)


def raw_pages(kv_dtype, num_padding_rows=0):
    it = spec(kv_dtype)
    distance = it.page_bytes + num_padding_rows * it.row_bytes
    raw = torch.arange(B * distance).remainder(251).to(torch.uint8).view(B, distance)
    return raw[:, : it.page_bytes] if num_padding_rows else raw.view(-1)


def pages_of(kv_dtype, num_padding_rows=0):
    view = Mine.kv_view(raw_pages(kv_dtype, num_padding_rows), spec(kv_dtype), B)
    return view, split_pages(view, replace(SHAPE, kv_dtype=kv_dtype))


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize("kv_dtype", [name for name in DTYPES if name != "int8"])
def test_a_view_has_heads_before_tokens(kv_dtype, padding):
    view, pages = pages_of(kv_dtype, padding)
    assert view.shape == pages.data.shape == (B, 2, K, S, D)
    assert view.dtype == DTYPES[kv_dtype]
    assert pages.scales is None
    assert pages.data.data_ptr() == view.data_ptr()


def test_float8_is_split_into_codes():
    _, pages = pages_of("float8_e4m3fn")
    assert (pages.kind, pages.data.dtype) == ("float8", torch.uint8)
    assert torch.equal(pages.data.flatten(), raw_pages("float8_e4m3fn"))


@pytest.mark.parametrize("padding", [0, 7])
def test_int8_stores_its_scales_after_the_elements(padding):
    view, pages = pages_of("int8", padding)
    assert view.shape == (B, 2 * K * S * (D + 4))
    assert (pages.data.shape, pages.data.dtype) == ((B, 2, K, S, D), torch.int8)
    assert (pages.scales.shape, pages.scales.dtype) == ((B, 2, K, S), torch.float32)
    pages.data.fill_(-2)
    pages.scales.fill_(0.5)
    assert (view[:, : 2 * K * S * D].view(torch.int8) == -2).all()
    assert (view[:, 2 * K * S * D :].view(torch.float32) == 0.5).all()


def test_writing_pages_leaves_their_padding_alone():
    raw = torch.full((B, spec("int8").page_bytes + 56), 9, dtype=torch.uint8)
    it = spec("int8")
    pages = split_pages(
        Mine.kv_view(raw[:, : it.page_bytes], it, B), replace(SHAPE, kv_dtype="int8")
    )
    pages.data.zero_()
    pages.scales.zero_()
    assert (raw[:, it.page_bytes :] == 9).all()
    assert not raw[:, : it.page_bytes].any()


def test_kinds_follow_from_the_element_type():
    assert [kind_of(name) for name in DTYPES] == ["plain"] * 3 + ["float8", "int8"]


def odd_spec(kv_dtype, extra_bytes):
    class OddSpec(FullAttentionSpec):
        @property
        def page_bytes(self):
            return super().page_bytes + extra_bytes

    return OddSpec(spec(kv_dtype).layer, S, kv_dtype)


@pytest.mark.parametrize("kv_dtype", list(DTYPES))
def test_pages_that_are_not_whole_heads_are_refused(kv_dtype):
    odd = odd_spec(kv_dtype, 8)
    with pytest.raises(RefusedError, match=r"mine cannot use the KV cache of layers\.0\.attn"):
        Mine.kv_view(torch.zeros(odd.page_bytes, dtype=torch.uint8), odd, 1)


def test_padding_of_int8_pages_is_a_multiple_of_a_scale():
    it = spec("int8")
    raw = torch.zeros(B, it.page_bytes + 4, dtype=torch.uint8)
    assert len(Mine.kv_view(raw[:, : it.page_bytes], it, B)) == B


def test_the_distance_of_a_single_block_does_not_matter():
    it = spec("float32")
    raw = torch.zeros(1, it.page_bytes + 4, dtype=torch.uint8)
    assert Mine.kv_view(raw[:, : it.page_bytes], it, 1).shape[0] == 1


def test_scales_of_int8_begin_where_float32_can():
    odd = FullAttentionSpec(KVLayer("layers.0.attn", "full_attention", 1, 3), 1, "int8")
    with pytest.raises(RefusedError, match="mine cannot use the KV cache"):
        Mine.kv_view(torch.zeros(4, 16, dtype=torch.uint8)[:, : odd.page_bytes], odd, 4)


@pytest.mark.parametrize("kv_dtype", ["float32", "float8_e4m3fn", "int8"])
def test_padding_of_less_than_a_row_is_refused(kv_dtype):
    it = spec(kv_dtype)
    raw = torch.zeros(B, it.page_bytes + 2, dtype=torch.uint8)
    with pytest.raises(RefusedError, match=f"stride of {it.page_bytes + 2}"):
        Mine.kv_view(raw[:, : it.page_bytes], it, B)


def test_an_unknown_type_is_refused():
    class OtherSpec(FullAttentionSpec):
        kv_dtype = "float4"

    other = FullAttentionSpec.__new__(OtherSpec)
    with pytest.raises(RefusedError, match="mine does not support a KV cache of type float4"):
        Mine.kv_view(torch.zeros(8, dtype=torch.uint8), other, 1)
