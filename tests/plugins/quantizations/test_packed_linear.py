"""Layers with packed weights: loading, stored values, and operation without a compiler."""

from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT
from native_libraries import failing_library
from torch.nn.functional import linear

from quire.layers import (
    ColumnParallelLinear,
    LayerContext,
    LMHead,
    MergedColumnParallelLinear,
    VocabParallelEmbedding,
)
from quire.layers.linear.row_tiles import same_bits
from quire.native.availability import native_unavailable_reason
from quire_quantizations import linear_library as library
from quire_quantizations.formats import INT8, Format
from quire_quantizations.methods import (
    BFloat16Products,
    BFloat16Weights,
    Float32Weights,
    Int4Weights,
    Int8Weights,
    PackedWeights,
)

METHODS = (BFloat16Weights, Float32Weights, Int8Weights, Int4Weights)


@pytest.fixture(params=["compiled", "without a compiler"])
def has_compiler(request, monkeypatch, tmp_path):
    if request.param == "compiled" and (reason := native_unavailable_reason()) is not None:
        pytest.skip(reason)
    if request.param != "compiled":
        monkeypatch.setattr(library, "LIBRARY", failing_library(tmp_path))
    return request.param == "compiled"


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_weights(method: type[PackedWeights], **changes) -> LayerContext:
    return replace(CONTEXT, quantization=method.from_config({}), **changes)


def kept(weight_format: Format, weight: torch.Tensor) -> torch.Tensor:
    return weight_format.round_weight(weight.float())


def test_a_layer_multiplies_what_its_method_keeps(has_compiler, method):
    context = with_weights(method)
    layer = ColumnParallelLinear("up", 40, 24, bias=True, context=context)
    layer.load_weight("weight", numbers(24, 40), "up")
    layer.load_weight("bias", numbers(24, seed=1), "up")
    layer.finish_loading()
    x = numbers(9, 40, seed=2)
    expected = linear(x, kept(method.weight_format, numbers(24, 40)), numbers(24, seed=1))
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_slices_of_several_types_lose_nothing(has_compiler):
    context = with_weights(Float32Weights)
    layer = MergedColumnParallelLinear("m", 40, {"a": 3, "b": 5}, bias=False, context=context)
    layer.load_weight("weight", numbers(3, 40).bfloat16(), "a")
    layer.load_weight("weight", numbers(5, 40, seed=1), "b")
    layer.finish_loading()
    x = numbers(2, 40, seed=2)
    weight = torch.cat((numbers(3, 40).bfloat16().float(), numbers(5, 40, seed=1)))
    torch.testing.assert_close(layer(x), linear(x, weight), rtol=1e-5, atol=1e-5)


WIDE = {"float32": torch.float32, "float16": torch.float16}


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("is_wide_first", [True, False])
def test_where_nothing_may_be_lost_a_wide_tensor_keeps_its_layer_wide(
    has_compiler, wide, is_wide_first
):
    """Also beside a bfloat16 one; `auto` asks for this."""
    context = replace(CONTEXT, quantization=BFloat16Weights().lossless())
    layer = MergedColumnParallelLinear("m", 40, {"a": 3, "b": 5}, bias=False, context=context)
    types = (WIDE[wide], torch.bfloat16) if is_wide_first else (torch.bfloat16, WIDE[wide])
    parts = numbers(3, 40).to(types[0]), numbers(5, 40, seed=1).to(types[1])
    for name, part in zip("ab", parts, strict=True):
        layer.load_weight("weight", part, name)
    layer.finish_loading()
    weight = torch.cat([part.float() for part in parts])
    torch.testing.assert_close(layer(torch.eye(40)), weight.T, rtol=1e-7, atol=0)


def test_where_nothing_may_be_lost_bfloat16_stays_bfloat16(has_compiler):
    context = replace(CONTEXT, quantization=BFloat16Weights().lossless())
    layer = ColumnParallelLinear("up", 128, 64, bias=False, context=context)
    layer.load_weight("weight", numbers(64, 128).bfloat16(), "up")
    layer.finish_loading()
    expected = numbers(64, 128).bfloat16().float().T
    torch.testing.assert_close(layer(torch.eye(128)), expected, rtol=0, atol=0)
    if has_compiler:
        assert layer.get_buffer("packed_weight").nbytes == 2 * 64 * 128


@pytest.mark.parametrize("has_bias", [False, True])
def test_without_a_compiler_products_of_pairs_round_as_well(has_bias, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIBRARY", failing_library(tmp_path))
    context = replace(CONTEXT, quantization=BFloat16Products())
    layer = ColumnParallelLinear("up", 40, 24, bias=has_bias, context=context)
    layer.load_weight("weight", numbers(24, 40), "up")
    bias = numbers(24, seed=1) if has_bias else None
    if bias is not None:
        layer.load_weight("bias", bias, "up")
    layer.finish_loading()
    x = numbers(9, 40, seed=2)
    expected = linear(x.bfloat16().float(), numbers(24, 40).bfloat16().float(), bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-6, atol=1e-6)


def test_a_wide_weight_that_will_be_rounded_is_held_in_bfloat16():
    layer = ColumnParallelLinear("up", 40, 24, bias=False, context=with_weights(BFloat16Weights))
    layer.load_weight("weight", numbers(24, 40), "up")
    assert layer.get_parameter("weight").dtype == torch.bfloat16


def test_a_checkpoint_in_float64_is_held_in_float32(has_compiler):
    layer = ColumnParallelLinear("up", 40, 24, bias=False, context=with_weights(Float32Weights))
    layer.load_weight("weight", numbers(24, 40).double(), "up")
    assert layer.get_parameter("weight").dtype == torch.float32
    layer.finish_loading()
    torch.testing.assert_close(layer(torch.eye(40)), numbers(24, 40).T, rtol=1e-7, atol=0)


def test_without_a_compiler_torch_multiplies_as_if_no_method_were_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIBRARY", failing_library(tmp_path))
    layer = ColumnParallelLinear("up", 64, 512, bias=False, context=with_weights(Int8Weights))
    layer.load_weight("weight", numbers(512, 64), "up")
    layer.finish_loading()
    plain = ColumnParallelLinear("up", 64, 512, bias=False, context=replace(CONTEXT, prepack=True))
    plain.load_weight("weight", kept(INT8, numbers(512, 64)), "up")
    plain.finish_loading()
    assert layer.get_parameter("weight").is_mkldnn == plain.get_parameter("weight").is_mkldnn
    x = numbers(16, 64, seed=2)
    assert torch.equal(layer(x), plain(x))


def test_a_bfloat16_checkpoint_is_loaded_in_bfloat16(method):
    layer = ColumnParallelLinear("up", 40, 24, bias=False, context=with_weights(method))
    layer.load_weight("weight", numbers(24, 40).bfloat16(), "up")
    assert layer.get_parameter("weight").dtype == torch.bfloat16


def test_the_dense_weight_is_let_go(method):
    if (reason := native_unavailable_reason()) is not None:
        pytest.skip(reason)
    layer = ColumnParallelLinear("up", 1024, 64, bias=False, context=with_weights(method))
    layer.load_weight("weight", numbers(64, 1024), "up")
    layer.finish_loading()
    assert list(layer.parameters()) == []
    bits = {"float32": 32, "bfloat16": 16, "int8": 8.125, "int4": 4.5}
    names = dict(zip(METHODS, ("bfloat16", "float32", "int8", "int4"), strict=True))
    assert layer.get_buffer("packed_weight").nbytes * 8 == bits[names[method]] * 64 * 1024


def tied_pair(
    context: LayerContext, dtype: torch.dtype = torch.bfloat16
) -> tuple[VocabParallelEmbedding, LMHead]:
    embedding = VocabParallelEmbedding(50, 16, context)
    head = LMHead(50, 16, context, tied_to=embedding)
    embedding.load_weight("weight", numbers(50, 16).to(dtype), "embed_tokens")
    embedding.finish_loading()
    head.finish_loading()
    return embedding, head


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_tied_embedding_looks_up_the_rows_of_its_head(has_compiler, method, dtype):
    embedding, head = tied_pair(with_weights(method), dtype)
    weight = kept(method.head, numbers(50, 16).to(dtype))
    ids, hidden = torch.tensor([3, 49, 3]), numbers(4, 16, seed=1)
    assert torch.equal(embedding(ids), weight[ids])
    torch.testing.assert_close(head(hidden), linear(hidden, weight), rtol=1e-5, atol=1e-5)
    assert embedding.weight is None
    assert len(list(head.parameters())) == (0 if has_compiler else 1)


@pytest.mark.parametrize("dtype", WIDE)
def test_where_nothing_may_be_lost_a_tied_head_is_as_wide_as_its_embedding(has_compiler, dtype):
    context = replace(CONTEXT, quantization=BFloat16Weights().lossless())
    embedding, head = tied_pair(context, WIDE[dtype])
    weight, ids = numbers(50, 16).to(WIDE[dtype]).float(), torch.tensor([3, 49])
    assert torch.equal(embedding(ids), weight[ids])
    torch.testing.assert_close(head(torch.eye(16)), weight.T, rtol=1e-7, atol=0)


def test_an_untied_head_is_kept_once_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "LIBRARY", failing_library(tmp_path))
    head = LMHead(512, 64, with_weights(Int8Weights))
    head.load_weight("weight", numbers(512, 64), "lm_head")
    head.finish_loading()
    assert [name for name, _ in head.named_buffers() if name == "packed_weight"] == []


def test_an_untied_embedding_stays_in_the_type_of_the_checkpoint(method):
    embedding = VocabParallelEmbedding(50, 16, with_weights(method))
    embedding.load_weight("weight", numbers(50, 16).bfloat16(), "embed_tokens")
    assert embedding.weight.dtype == torch.bfloat16
    vectors = embedding(torch.tensor([7]))
    assert torch.equal(vectors, numbers(50, 16).bfloat16()[[7]].float())


def test_the_head_of_a_four_bit_model_has_eight():
    assert Int4Weights.from_config({}).linear_method("lm_head").weight_format is INT8


def test_in_batch_invariant_mode_rows_have_the_same_bits(has_compiler, method):
    context = with_weights(method, batch_invariant=True)
    layer = ColumnParallelLinear("up", 100, 37, bias=True, context=context)
    layer.load_weight("weight", numbers(37, 100), "up")
    layer.load_weight("bias", numbers(37, seed=1), "up")
    layer.finish_loading()
    x = numbers(70, 100, seed=2)
    whole = layer(x)
    for count in range(1, 71):
        assert same_bits(layer(x[:count]), whole[:count])
    assert layer.method.is_batch_invariant == has_compiler
