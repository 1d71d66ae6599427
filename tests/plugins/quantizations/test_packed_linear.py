"""Layers with packed weights: loading, stored values, and operation without a compiler."""

from dataclasses import replace

import pytest
import torch
from format_reference import round_weight
from model_parts import CONTEXT
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
from quire_quantizations.formats import INT8, INT8_DOT, Format
from quire_quantizations.methods import (
    BFloat16Weights,
    Float16Weights,
    Float32Weights,
    Int4Products,
    Int4Weights,
    Int8Weights,
    PackedWeights,
)

METHODS = (BFloat16Weights, Float32Weights, Int8Weights, Int4Weights)


pytestmark = pytest.mark.skipif(
    native_unavailable_reason() is not None, reason="packed weights need compiled kernels"
)


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_weights(method: type[PackedWeights], **changes) -> LayerContext:
    return replace(CONTEXT, quantization=method.from_config({}), **changes)


def kept(weight_format: Format, weight: torch.Tensor) -> torch.Tensor:
    return round_weight(weight_format, weight.float())


def test_a_layer_multiplies_what_its_method_keeps(method):
    context = with_weights(method)
    layer = ColumnParallelLinear("up", 40, 24, bias=True, context=context)
    layer.load_weight("weight", numbers(24, 40), "up")
    layer.load_weight("bias", numbers(24, seed=1), "up")
    layer.finish_loading()
    x = numbers(9, 40, seed=2)
    expected = linear(x, kept(method.weight_format, numbers(24, 40)), numbers(24, seed=1))
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_slices_of_several_types_lose_nothing():
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
def test_where_nothing_may_be_lost_a_wide_tensor_keeps_its_layer_wide(wide, is_wide_first):
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", [BFloat16Weights, Float16Weights, Float32Weights])
def test_where_nothing_may_be_lost_16_bits_stay_16_bits(method, dtype):
    context = replace(CONTEXT, quantization=method().lossless())
    layer = ColumnParallelLinear("up", 128, 64, bias=False, context=context)
    layer.load_weight("weight", numbers(64, 128).to(dtype), "up")
    layer.finish_loading()
    expected = numbers(64, 128).to(dtype).float().T
    torch.testing.assert_close(layer(torch.eye(128)), expected, rtol=0, atol=0)
    assert layer.get_buffer("packed_weight").nbytes == 2 * 64 * 128


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_float16_does_not_have_is_never_rounded_to_it(dtype):
    weight = numbers(64, 128).mul(1e6).to(dtype)
    layer = ColumnParallelLinear("up", 128, 64, bias=False, context=with_weights(Float16Weights))
    layer.load_weight("weight", weight, "up")
    layer.finish_loading()
    torch.testing.assert_close(layer(torch.eye(128)), weight.float().T, rtol=0, atol=0)


def test_a_checkpoint_in_float64_is_stored_in_float32():
    layer = ColumnParallelLinear("up", 40, 24, bias=False, context=with_weights(Float32Weights))
    layer.load_weight("weight", numbers(24, 40).double(), "up")
    layer.finish_loading()
    torch.testing.assert_close(layer(torch.eye(40)), numbers(24, 40).T, rtol=1e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_slices_are_packed_where_the_checkpoint_has_them(method, dtype):
    """They are views, of any distance between rows, and are not copied before they are packed."""
    context = with_weights(method)
    whole = numbers(70, 90).to(dtype)
    views = whole[1:38, 3:43], whole.T[2:53, 5:45]
    layer = MergedColumnParallelLinear("m", 40, {"a": 37, "b": 51}, bias=False, context=context)
    for name, view in zip("ab", views, strict=True):
        layer.load_weight("weight", view, name)
    assert layer.get_parameter("weight").is_meta
    layer.finish_loading()
    expected = ColumnParallelLinear("m", 40, 88, bias=False, context=context)
    expected.load_weight("weight", torch.cat(views), "m")
    expected.finish_loading()
    assert torch.equal(layer.get_buffer("packed_weight"), expected.get_buffer("packed_weight"))


def test_rows_that_were_not_loaded_are_counted(method):
    layer = MergedColumnParallelLinear(
        "m", 40, {"a": 3, "b": 5}, bias=False, context=with_weights(method)
    )
    layer.load_weight("weight", numbers(3, 40), "a")
    with pytest.raises(RuntimeError, match="3 of 8 rows of a linear layer were loaded"):
        layer.finish_loading()


def test_the_dense_weight_is_let_go(method):
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
def test_a_tied_embedding_looks_up_the_rows_of_its_head(method, dtype):
    embedding, head = tied_pair(with_weights(method), dtype)
    weight = kept(method.head, numbers(50, 16).to(dtype))
    ids, hidden = torch.tensor([3, 49, 3]), numbers(4, 16, seed=1)
    assert torch.equal(embedding(ids), weight[ids])
    torch.testing.assert_close(head(hidden), linear(hidden, weight), rtol=1e-5, atol=1e-5)
    assert embedding.weight is None
    assert list(head.parameters()) == []


@pytest.mark.parametrize("dtype", WIDE)
def test_where_nothing_may_be_lost_a_tied_head_is_as_wide_as_its_embedding(dtype):
    context = replace(CONTEXT, quantization=BFloat16Weights().lossless())
    embedding, head = tied_pair(context, WIDE[dtype])
    weight, ids = numbers(50, 16).to(WIDE[dtype]).float(), torch.tensor([3, 49])
    assert torch.equal(embedding(ids), weight[ids])
    torch.testing.assert_close(head(torch.eye(16)), weight.T, rtol=1e-7, atol=0)


def test_an_untied_embedding_stays_in_the_type_of_the_checkpoint(method):
    embedding = VocabParallelEmbedding(50, 16, with_weights(method))
    embedding.load_weight("weight", numbers(50, 16).bfloat16(), "embed_tokens")
    assert embedding.weight.dtype == torch.bfloat16
    vectors = embedding(torch.tensor([7]))
    assert torch.equal(vectors, numbers(50, 16).bfloat16()[[7]].float())


def test_the_head_of_a_four_bit_model_has_eight():
    assert Int4Weights.from_config({}).linear_method("lm_head").weight_format is INT8
    assert Int4Products.from_config({}).linear_method("lm_head").weight_format is INT8_DOT


def test_in_batch_invariant_mode_rows_have_the_same_bits(method):
    context = with_weights(method, batch_invariant=True)
    layer = ColumnParallelLinear("up", 100, 37, bias=True, context=context)
    layer.load_weight("weight", numbers(37, 100), "up")
    layer.load_weight("bias", numbers(37, seed=1), "up")
    layer.finish_loading()
    x = numbers(70, 100, seed=2)
    whole = layer(x)
    for count in range(1, 71):
        assert same_bits(layer(x[:count]), whole[:count])
    assert layer.method.is_batch_invariant
