"""Adapters of a layer that runs kernels: the same results as one product per adapter."""

from dataclasses import replace

import pytest
import torch
from kernel_device import DEVICE
from model_parts import CONTEXT
from torch import Tensor

from quire.interfaces.lora import AdapterBatch, AdapterModule
from quire.layers import QKVParallelLinear, TensorParallelGroup
from quire.layers.linear.row_tiles import same_bits

PLAIN = replace(CONTEXT, device=DEVICE)
FUSED = replace(PLAIN, kernels="triton")
INDEX = torch.tensor([1, -1, 0, 1, -1, 0, 1], device=DEVICE)


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


X = numbers(len(INDEX), 16, seed=0)


def qkv(context=FUSED) -> QKVParallelLinear:
    layer = QKVParallelLinear("a.qkv_proj", 16, 4, 2, 4, bias=True, context=context)
    for seed, (part, rows) in enumerate((("q_proj", 16), ("k_proj", 8), ("v_proj", 8))):
        layer.load_weight("weight", numbers(rows, 16, seed=seed), part)
        layer.load_weight("bias", numbers(rows, seed=10 + seed), part)
    layer.finish_loading()
    layer.enable_lora(2, 8)
    return layer


def adapter(parts: dict[str, int], seed: int) -> dict[str, AdapterModule]:
    rows = {"q_proj": 16, "k_proj": 8, "v_proj": 8}
    return {
        part: AdapterModule(
            numbers(rank, 16, seed=seed + number), numbers(rows[part], rank, seed=seed + 5), 0.5
        )
        for number, (part, rank) in enumerate(parts.items())
    }


FIRST = adapter({"q_proj": 3, "v_proj": 8}, seed=20)
SECOND = adapter({"k_proj": 2}, seed=30)


def by_rows(index: Tensor) -> AdapterBatch:
    """What the products of each adapter need."""
    rows = tuple((adapter, (index == adapter).nonzero().squeeze(1)) for adapter in (0, 1))
    return AdapterBatch(index, rows)


def by_index(index: Tensor) -> AdapterBatch:
    """What kernels need, as in a captured step."""
    return AdapterBatch(index, None)


def test_kernels_look_at_the_index_alone():
    fused, plain = qkv(), qkv(PLAIN)
    for layer in (fused, plain):
        layer.set_adapter(0, FIRST)
        layer.set_adapter(1, SECOND)
    expected = plain(X, by_rows(INDEX))
    torch.testing.assert_close(fused(X, by_index(INDEX)), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(expected, plain(X))


def test_tokens_without_an_adapter_stay_exactly_the_same():
    layer = qkv()
    layer.set_adapter(0, FIRST)
    layer.set_adapter(1, SECOND)
    out = layer(X, by_index(INDEX))
    assert torch.equal(out[INDEX < 0], layer(X)[INDEX < 0])


def test_an_adapter_takes_the_place_of_another_in_the_same_memory():
    layer, batch = qkv(), by_index(torch.zeros_like(INDEX))
    layer.set_adapter(0, FIRST)
    before, addresses = layer(X, batch), memory(layer)
    layer.set_adapter(0, {})
    assert torch.equal(layer(X, batch), layer(X))
    layer.set_adapter(0, SECOND)
    assert memory(layer) == addresses
    fresh = qkv()
    fresh.set_adapter(0, SECOND)
    assert torch.equal(layer(X, batch), fresh(X, batch))
    assert not torch.equal(layer(X, batch), before)


def memory(layer: QKVParallelLinear) -> list[int]:
    """Where lies what the kernels read: a captured step keeps these addresses."""
    assert layer.lora is not None
    kernels = layer.lora._kernels
    assert kernels is not None
    return [t.data_ptr() for t in (kernels.a, kernels.b, kernels.spans, kernels.tiles)]


class SecondOfTwo(TensorParallelGroup):
    """A rank without results of its peer."""

    rank, size = 1, 2

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return x


def test_a_device_has_its_share_of_an_adapter():
    batch = by_index(INDEX)
    whole, share = qkv(), qkv(replace(FUSED, tp=SecondOfTwo()))
    for layer in (whole, share):
        layer.set_adapter(0, FIRST)
        layer.set_adapter(1, SECOND)
    q, k, v = (whole(X, batch) - whole(X)).split([16, 8, 8], 1)
    mine = torch.cat([part.chunk(2, 1)[1] for part in (q, k, v)], 1)
    change = share(X, batch) - share(X)
    torch.testing.assert_close(change, mine, rtol=1e-5, atol=1e-5)
    assert change.abs().sum() > 0


@pytest.mark.parametrize("token", range(len(INDEX)))
def test_in_batch_invariant_mode_a_token_is_the_same_alone(token):
    layer = qkv(replace(FUSED, batch_invariant=True))
    layer.set_adapter(0, FIRST)
    layer.set_adapter(1, SECOND)
    alone = layer(X[token : token + 1], by_index(INDEX[token : token + 1]))
    assert same_bits(alone[0], layer(X, by_index(INDEX))[token])
