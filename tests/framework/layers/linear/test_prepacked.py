"""Packed weights give the products of dense ones, and keep the memory that they must."""

from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT
from torch.nn.functional import linear

from quire.layers import ColumnParallelLinear, LMHead, VocabParallelEmbedding
from quire.layers.linear import prepacked
from quire.layers.linear.prepacked import FEW_ROWS, SMALL_WEIGHT, Prepacked

PACKING = replace(CONTEXT, prepack=True)

pytestmark = pytest.mark.skipif(
    not Prepacked.is_available(CONTEXT.dtype, CONTEXT.device), reason="torch without oneDNN"
)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.inference_mode():
        yield


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer_of(rows: int, columns: int, bias: bool = False) -> ColumnParallelLinear:
    layer = ColumnParallelLinear("up", columns, rows, bias=bias, context=PACKING)
    layer.load_weight("weight", numbers(rows, columns), "up")
    if bias:
        layer.load_weight("bias", numbers(rows, seed=1), "up")
    return layer


@pytest.mark.parametrize("rows_of_x", [1, FEW_ROWS - 1, FEW_ROWS, 5, 16, 33, 200])
@pytest.mark.parametrize("shape", [(48, 24), (1, 7), (SMALL_WEIGHT // 64 + 1, 64)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_that_of_the_dense_weight(rows_of_x, shape, bias):
    layer = layer_of(*shape, bias)
    layer.finish_loading()
    x = numbers(rows_of_x, shape[1], seed=2)
    expected = linear(x, numbers(*shape), numbers(shape[0], seed=1) if bias else None)
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_before_loading_is_finished_the_dense_weight_is_used():
    x = numbers(9, 24)
    torch.testing.assert_close(layer_of(48, 24)(x), linear(x, numbers(48, 24)))


def test_the_weight_still_counts_as_the_layers_memory():
    layer = layer_of(48, 24)
    layer.finish_loading()
    assert [parameter.numel() for parameter in layer.parameters()] == [48 * 24]


@pytest.mark.parametrize(("rows", "copies"), [(48, 2), (SMALL_WEIGHT // 24 + 1, 1)])
def test_a_weight_that_is_kept_twice_counts_twice(rows, copies):
    layer = layer_of(rows, 24)
    layer.finish_loading()
    kept = [tensor.numel() for tensor in layer.state_dict().values()]
    assert sum(kept) == copies * rows * 24


def test_the_copy_of_a_tied_weight_is_counted():
    embedding, head = tied_pair()
    head.finish_loading()
    assert head.get_buffer("packed_weight").numel() == embedding.weight.numel()


def tied_pair() -> tuple[VocabParallelEmbedding, LMHead]:
    embedding = VocabParallelEmbedding(40, 8, PACKING)
    embedding.load_weight("weight", numbers(40, 8), "embed_tokens")
    return embedding, LMHead(40, 8, PACKING, tied_to=embedding)


@pytest.mark.parametrize("max_copy", [0, 1000])
def test_a_tied_embedding_stays_readable(monkeypatch, max_copy):
    monkeypatch.setattr(prepacked, "MAX_COPY", max_copy)
    embedding, head = tied_pair()
    head.finish_loading()
    ids, hidden = torch.tensor([3, 39]), numbers(6, 8, seed=3)
    assert torch.equal(embedding(ids), numbers(40, 8)[ids])
    torch.testing.assert_close(head(hidden), linear(hidden, numbers(40, 8)))


def test_other_dtypes_and_devices_are_not_packed():
    assert not Prepacked.is_available(torch.bfloat16, torch.device("cpu"))
    assert not Prepacked.is_available(torch.float32, torch.device("cuda"))
