"""Norms of query and key heads, against the formula in float64."""

from dataclasses import replace

import pytest
import torch
from kernel_device import ONLY_INTERPRETED
from model_parts import CONTEXT
from torch import Tensor

from quire.layers import (
    LayerContext,
    QKLayerNorm,
    QKNorm,
    QKProjectionNorm,
    TensorParallelGroup,
    ValueNorm,
)


def by_formula(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return (x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight).float()


def layer_norm_by_formula(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return by_formula(x - x.mean(-1, keepdim=True), weight, eps)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_query_and_key_heads_have_norms_of_their_own():
    norm = QKNorm(3, 2, 8, 1e-6, CONTEXT)
    q_weight, k_weight = numbers(8, seed=1), numbers(8, seed=2)
    norm.load_weight("weight", k_weight, "k_norm")
    norm.load_weight("weight", q_weight, "q_norm")
    qk = numbers(4, 5, 8)
    normed = norm(qk)
    torch.testing.assert_close(normed[:, :3], by_formula(qk[:, :3], q_weight, 1e-6))
    torch.testing.assert_close(normed[:, 3:], by_formula(qk[:, 3:], k_weight, 1e-6))


def test_query_and_key_norms_take_the_offset_too():
    for dtype in (torch.float32, torch.bfloat16):
        norm = QKNorm(1, 1, 8, 1e-6, replace(CONTEXT, dtype=dtype), weight_offset=1.0)
        norm.load_weight("weight", numbers(8, seed=1), "q_norm")
        norm.load_weight("weight", numbers(8, seed=2), "k_norm")
        qk = numbers(4, 2, 8).to(dtype)
        expected = by_formula(qk, 1 + torch.stack((numbers(8, seed=1), numbers(8, seed=2))), 1e-6)
        torch.testing.assert_close(norm(qk), expected.to(dtype))


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_native_norms_of_heads_are_the_same(offset):
    qk = numbers(3, 5, 8)
    results = []
    for kernels in ("torch", "native"):
        norm = QKNorm(3, 2, 8, 1e-6, replace(CONTEXT, kernels=kernels), weight_offset=offset)
        norm.load_weight("weight", numbers(8, seed=3), "q_norm")
        norm.load_weight("weight", numbers(8, seed=4), "k_norm")
        norm.finish_loading()
        assert (norm.kernel is not None) == (kernels == "native")
        results.append(norm(qk))
    torch.testing.assert_close(*results)


WITH_EACH_KERNEL = pytest.mark.parametrize(
    "kernels",
    ["torch", "native", pytest.param("triton", marks=ONLY_INTERPRETED)],
)
VECTORS = {"shared": (8,), "own": (4, 8), "flat": (32,), "listed": (8,)}
FORMULAS = {QKNorm: by_formula, QKLayerNorm: layer_norm_by_formula}


class OneOf(TensorParallelGroup):
    """A rank whose peers' results are given beforehand."""

    def __init__(self, rank: int, size: int, peers: Tensor) -> None:
        self.rank, self.size, self.peers = rank, size, peers

    def all_reduce(self, x: Tensor) -> Tensor:
        return x + self.peers

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return torch.cat((self.peers, x) if self.rank else (x, self.peers), dim)


def rank_of(rank: int, size: int, peers: Tensor, **options) -> LayerContext:
    return replace(CONTEXT, tp=OneOf(rank, size, peers), **options)


def load(norm: torch.nn.Module, vectors: str, num_heads: int = 4, num_kv_heads: int = 2) -> Tensor:
    """Load random vectors; returns the weight of all heads, `[H + K, 8]`."""
    whole = torch.cat((numbers(num_heads, 8, seed=1), numbers(num_kv_heads, 8, seed=2)))
    sides = {"q_norm": whole[:num_heads], "k_norm": whole[num_heads:]}
    for name, own in sides.items():
        if vectors == "listed":
            for head, vector in reversed(list(enumerate(own))):  # in any order
                assert norm.checkpoint_shape("weight", f"{name}.{head}") == (8,)
                norm.load_weight("weight", vector, f"{name}.{head}")
            continue
        stored = {"shared": own[0], "own": own, "flat": own.flatten()}[vectors]
        assert norm.checkpoint_shape("weight", name) == stored.shape
        norm.load_weight("weight", stored, name)
        if vectors == "shared":
            own.copy_(own[0].expand_as(own))
    norm.finish_loading()
    return whole


@WITH_EACH_KERNEL
@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("norm_class", FORMULAS)
def test_heads_have_the_vectors_that_the_checkpoint_has_for_them(norm_class, vectors, kernels):
    norm = norm_class(4, 2, 8, 1e-3, replace(CONTEXT, kernels=kernels), vectors=vectors)
    weight = load(norm, vectors)
    expected = FORMULAS[norm_class](numbers(3, 6, 8), weight, 1e-3)
    torch.testing.assert_close(norm(numbers(3, 8, 8)[:, :6].copy_(numbers(3, 6, 8))), expected)


@pytest.mark.parametrize("vectors", ["own", "flat", "listed"])
@pytest.mark.parametrize(
    ("rank", "size", "rows"),
    [
        *((rank, 4, [rank, 4 + rank // 2]) for rank in range(4)),
        (0, 2, [0, 1, 4]),
        (1, 2, [2, 3, 5]),
    ],
)
def test_a_device_has_the_vectors_of_its_heads(rank, size, rows, vectors):
    norm = QKLayerNorm(4, 2, 8, 1e-3, rank_of(rank, size, torch.zeros(1)), vectors=vectors)
    weight = load(norm, vectors)
    assert torch.equal(norm.weight, weight[rows])


@pytest.mark.parametrize("vectors", VECTORS)
def test_vectors_follow_the_order_of_a_heads_elements_and_have_an_offset(vectors):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    norm = QKNorm(4, 2, 8, 1e-3, CONTEXT, vectors=vectors, order=order, weight_offset=1.0)
    weight = load(norm, vectors)
    torch.testing.assert_close(norm.weight.data, 1 + weight[:, order])


@WITH_EACH_KERNEL
@pytest.mark.parametrize("norm_class", FORMULAS)
def test_heads_may_have_no_weight(norm_class, kernels):
    norm = norm_class(4, 2, 8, 1e-3, replace(CONTEXT, kernels=kernels), has_weight=False)
    norm.finish_loading()
    assert not list(norm.parameters())
    assert not norm.state_dict()
    assert torch.equal(norm.weight, torch.ones(6, 8))  # for backends that apply the norm
    expected = FORMULAS[norm_class](numbers(3, 6, 8), torch.ones(8), 1e-3)
    torch.testing.assert_close(norm(numbers(3, 6, 8)), expected)


def whole_by_formula(heads: Tensor, weight: Tensor, num_heads: int, eps: float) -> Tensor:
    q, k = heads[:, :num_heads].flatten(1), heads[:, num_heads:].flatten(1)
    sides = (
        by_formula(q, weight[:num_heads].flatten(), eps),
        by_formula(k, weight[num_heads:].flatten(), eps),
    )
    return torch.cat(sides, 1).view_as(heads)


@WITH_EACH_KERNEL
def test_whole_projections_are_normalised_where_they_are(kernels):
    norm = QKProjectionNorm(4, 2, 8, 1e-3, replace(CONTEXT, kernels=kernels))
    weight = load(norm, "flat")
    rows = numbers(3, 8, 8)
    heads = rows[:, :6]
    assert norm(heads) is heads
    torch.testing.assert_close(heads, whole_by_formula(numbers(3, 8, 8)[:, :6], weight, 4, 1e-3))
    assert torch.equal(rows[:, 6:], numbers(3, 8, 8)[:, 6:])


@WITH_EACH_KERNEL
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("num_kv_heads", [1, 2])
@pytest.mark.parametrize("rank", [0, 1])
def test_devices_normalise_a_projection_as_one_does(rank, num_kv_heads, batch_invariant, kernels):
    q, k = numbers(3, 4, 8), numbers(3, num_kv_heads, 8, seed=7)

    def heads_of(rank: int) -> Tensor:
        own = k if num_kv_heads == 1 else k[:, rank : rank + 1]
        return torch.cat((q[:, 2 * rank : 2 * rank + 2], own), 1)

    peer = heads_of(1 - rank).square()
    peers = torch.stack((peer[:, :2].sum((1, 2)), peer[:, 2:].sum((1, 2))), 1)
    context = rank_of(rank, 2, peers, batch_invariant=batch_invariant, kernels=kernels)
    norm = QKProjectionNorm(4, num_kv_heads, 8, 1e-3, context)
    weight = load(norm, "flat", num_kv_heads=num_kv_heads)
    whole = whole_by_formula(torch.cat((q, k), 1), weight, 4, 1e-3)
    kv_head = 4 if num_kv_heads == 1 else 4 + rank
    expected = whole[:, [2 * rank, 2 * rank + 1, kv_head]]
    torch.testing.assert_close(norm(heads_of(rank)), expected)


@pytest.mark.parametrize("rounds_before_weight", [False, True])
@pytest.mark.parametrize("norm_class", [QKNorm, QKLayerNorm, QKProjectionNorm])
def test_in_half_precision_heads_are_rounded_as_their_families_round(
    norm_class, rounds_before_weight
):
    half = replace(CONTEXT, dtype=torch.bfloat16)
    norm = norm_class(4, 2, 8, 1e-3, half, rounds_before_weight=rounds_before_weight)
    weight = load(norm, norm.vectors).bfloat16()
    heads = numbers(40, 6, 8).bfloat16()
    ones = torch.ones(6, 8)
    if norm_class is QKProjectionNorm:
        once, before = (whole_by_formula(heads, each, 4, 1e-3) for each in (weight, ones))
    else:
        formula = by_formula if norm_class is QKNorm else layer_norm_by_formula
        once, before = (formula(heads, each, 1e-3) for each in (weight.double(), ones))
    by_order = {False: once.bfloat16(), True: before.bfloat16() * weight}
    found = norm(heads.clone())
    agreed = {order: (found == each).float().mean() for order, each in by_order.items()}
    assert agreed[rounds_before_weight] > 0.99
    assert agreed[not rounds_before_weight] < 0.9


@WITH_EACH_KERNEL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_normalised_where_they_are(dtype, kernels):
    if dtype is torch.bfloat16 and kernels == "native":
        pytest.skip("native layers compute in float32")
    norm = ValueNorm(2, 8, 1e-3, replace(CONTEXT, dtype=dtype, kernels=kernels))
    norm.finish_loading()
    assert not list(norm.parameters())
    rows = numbers(3, 8, 8).to(dtype)
    given = rows.clone()
    values = rows[:, 6:]
    assert norm(values) is values
    expected = by_formula(given[:, 6:], torch.ones(8), 1e-3).to(dtype)
    torch.testing.assert_close(rows[:, 6:], expected)
    assert torch.equal(rows[:, :6], given[:, :6])
