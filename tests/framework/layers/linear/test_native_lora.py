"""Adapters of a CPU's layer, token by token: the same results as one product per adapter."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_parts import CONTEXT
from native_libraries import SETS_AND_ARM, use_set

from quire.errors import RefusedError
from quire.interfaces.lora import AdapterBatch, AdapterModule
from quire.layers.linear import lora_stacks as lora
from quire.layers.linear.linear_slice import LinearSlice
from quire.layers.linear.lora_stacks import LoRASlice, LoRAStacks
from quire.native.layer_kernels import libraries

NATIVE = replace(CONTEXT, kernels="native")
MAX_LORAS, MAX_RANK = 3, 5


def stacks(context, sizes, inputs):
    slices, offset = [], 0
    for size in sizes:
        slices.append(LoRASlice(offset, LinearSlice("", size, range(size))))
        offset += size
    return LoRAStacks(tuple(slices), range(inputs), MAX_LORAS, MAX_RANK, context)


def modules(ranks, sizes, inputs, seed):
    """An adapter; of rank 0 there is none."""
    random = torch.Generator().manual_seed(seed)
    return [
        AdapterModule(
            torch.randn(rank, inputs, generator=random),
            torch.randn(size, rank, generator=random),
            0.5,
        )
        if rank
        else None
        for rank, size in zip(ranks, sizes, strict=True)
    ]


def batch_of(index):
    adapters = sorted({adapter for adapter in index if adapter >= 0})
    index = torch.tensor(index)
    return AdapterBatch(
        index, tuple((adapter, (index == adapter).nonzero().squeeze(1)) for adapter in adapters)
    )


def check(layers, index, inputs, num_outputs):
    x = torch.randn(len(index), inputs, generator=torch.Generator().manual_seed(len(index)))
    start = torch.ones(len(index), num_outputs)
    plain, native = (start.clone(), start.clone())
    for layer, out in zip(layers, (plain, native), strict=True):
        layer.add(out, x, batch_of(index))
    torch.testing.assert_close(native, plain, rtol=1e-5, atol=2e-5)
    without = torch.tensor(index) < 0
    assert torch.equal(native[without], start[without])


@pytest.mark.parametrize("instruction_set", SETS_AND_ARM)
@pytest.mark.parametrize("inputs", [1, 16, 37, 256])
@pytest.mark.parametrize("sizes", [(1,), (16, 8, 8), (70, 33)])
def test_the_results_equal_the_matrix_products(monkeypatch, sizes, inputs, instruction_set):
    use_set(monkeypatch, libraries, instruction_set, "ADAPTERS")
    layers = stacks(CONTEXT, sizes, inputs), stacks(NATIVE, sizes, inputs)
    for layer in layers:
        layer.set(0, modules((5, 0, 2)[: len(sizes)], sizes, inputs, seed=1))
        layer.set(2, modules((1, 4, 3)[: len(sizes)], sizes, inputs, seed=2))
    for index in ([2], [0, 2, -1, 0, 2], [-1], [2, 0] * 9, [1, 0]):
        check(layers, index, inputs, sum(sizes))


RANKS = st.tuples(*[st.integers(0, MAX_RANK)] * 2)
LOADED = st.tuples(st.integers(0, MAX_LORAS - 1), RANKS, st.integers(0, 99))
ASKED = st.lists(st.integers(-1, MAX_LORAS - 1), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(st.lists(LOADED | ASKED, max_size=12))
def test_adapters_take_each_others_places(moves):
    sizes, inputs = (6, 19), 9
    layers = stacks(CONTEXT, sizes, inputs), stacks(NATIVE, sizes, inputs)
    for move in moves:
        if isinstance(move, list):
            check(layers, move, inputs, sum(sizes))
        else:
            adapter, ranks, seed = move
            for layer in layers:
                layer.set(adapter, modules(ranks, sizes, inputs, seed))


@pytest.mark.parametrize("num_tokens", [lora.FEW_TOKENS, lora.FEW_TOKENS + 1, 200])
def test_many_tokens_of_one_adapter_are_multiplied_at_once(num_tokens):
    layers = stacks(CONTEXT, (8,), 12), stacks(NATIVE, (8,), 12)
    for layer in layers:
        layer.set(1, modules((4,), (8,), 12, seed=3))
    by_token, seen = layers[1]._add_by_token, []
    layers[1]._add_by_token = lambda *given: (seen.append(len(given[0])), by_token(*given))
    check(layers, [1] * num_tokens, 12, 8)
    assert seen == ([num_tokens] if num_tokens <= lora.FEW_TOKENS else [])


def test_inputs_and_places_that_lie_apart_are_read_where_they_lie():
    layer = stacks(NATIVE, (8,), 12)
    for adapter in (0, 2):
        layer.set(adapter, modules((4,), (8,), 12, seed=adapter))
    wide = torch.randn(3, 24, generator=torch.Generator().manual_seed(0))
    x, index = wide[:, ::2], torch.tensor([2, 7, -1, 7, 0, 7])[::2]
    apart, whole = torch.zeros(3, 8), torch.zeros(3, 8)
    layer._add_by_token(apart, x, index)
    layer._add_by_token(whole, x.contiguous(), index.contiguous())
    assert torch.equal(apart, whole)
    assert apart[[0, 2]].abs().sum(1).gt(0).all()
    assert not apart[1].any()


def test_outputs_that_lie_apart_are_added_to():
    layer = stacks(NATIVE, (8,), 12)
    layer.set(1, modules((4,), (8,), 12, seed=3))
    x = torch.ones(2, 12)
    whole, piece = torch.zeros(2, 8), torch.zeros(2, 20)[:, 3:11]
    layer.add(whole, x, batch_of([1, 1]))
    layer.add(piece, x, batch_of([1, 1]))
    torch.testing.assert_close(piece, whole)


@pytest.mark.parametrize("num_refused", [1, 2, 3])
def test_in_batch_invariant_mode_every_product_is_tried_when_an_adapter_is_placed(
    monkeypatch, num_refused
):
    layer, tries = stacks(replace(NATIVE, batch_invariant=True), (8, 3), 12), []

    def largest_tile(product, sample):
        tries.append(product(sample[:1]).shape[1])
        return None if len(tries) == num_refused else 16

    monkeypatch.setattr(lora, "largest_tile", largest_tile)
    with pytest.raises(RefusedError, match=r"an adapter's product with [AB]"):
        layer.set(1, modules((4, 1), (8, 3), 12, seed=3))
    assert tries == [5, 8, 3][:num_refused]
    layer.set(1, [None, None])
    assert len(tries) == num_refused, "nothing is nothing to try"


def test_in_batch_invariant_mode_a_token_is_the_same_alone():
    layer = stacks(replace(NATIVE, batch_invariant=True), (8,), 12)
    for adapter in range(MAX_LORAS):
        layer.set(adapter, modules((4,), (8,), 12, seed=adapter))
    index, x = [0, 1, 2, -1, 1], torch.randn(5, 12)
    together = torch.zeros(5, 8)
    layer.add(together, x, batch_of(index))
    for row, adapter in enumerate(index):
        alone = torch.zeros(1, 8)
        layer.add(alone, x[row : row + 1], batch_of([adapter]))
        assert torch.equal(alone[0], together[row])
