"""Native router and grouping against torch, whatever the threads, the batch and the numbers."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_parts import CONTEXT
from torch import Tensor

from quire.layers import MoERouter, Routing
from quire.layers.linear.row_tiles import same_bits
from quire.native.layer_kernels import cpu_moe

NATIVE = replace(CONTEXT, kernels="native")
SCORES = ("softmax", "sigmoid", "top_k_softmax", "top_k_sigmoid", "sparsemixer")


def routers(routing: Routing, hidden: int, seed: int = 0) -> tuple[MoERouter, MoERouter]:
    """Return a router by torch and the native one, with the same random tensors."""
    generator = torch.Generator().manual_seed(seed)
    pair = MoERouter("gate", hidden, routing, CONTEXT), MoERouter("gate", hidden, routing, NATIVE)
    for name, parameter in pair[0].named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        values = values / hidden**0.5 if name == "weight" else values * 0.2
        for router in pair:
            router.get_parameter(name).copy_(values)
    for router in pair:
        router.finish_loading()
    return pair


def tokens(count: int, hidden: int, seed: int = 1) -> Tensor:
    return torch.randn(count, hidden, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=60)
@given(
    score=st.sampled_from(SCORES),
    num_experts=st.sampled_from([1, 3, 8, 24, 70]),
    hidden=st.sampled_from([1, 16, 37, 200]),
    num_tokens=st.sampled_from([1, 2, 5, 33]),
    flags=st.tuples(*[st.booleans()] * 5),
    groups=st.sampled_from([(1, 1), (2, 1), (4, 3)]),
    seed=st.integers(0, 9),
)
def test_choices_are_those_of_torch(score, num_experts, hidden, num_tokens, flags, groups, seed):
    has_bias, has_choice_bias, has_scale, is_normed, sums_two = flags
    if num_experts % groups[0] or score not in ("softmax", "sigmoid") or num_experts < 8:
        groups = (1, 1)
    routing = Routing(
        num_experts=num_experts,
        top_k=min(2, num_experts),
        score=score,
        has_bias=has_bias,
        has_choice_bias=has_choice_bias,
        num_groups=groups[0],
        top_groups=groups[1],
        group_score="top2" if sums_two and num_experts > groups[0] else "max",
        renormalize=has_bias,
        sum_offset=0.25 if has_scale else 0.0,
        min_sum=0.0 if has_scale else 0.4,
        scale=1.5,
        has_expert_scale=has_scale,
        input_norm_eps=1e-3 if is_normed else None,
        sparsemixer_threshold=0.8,
    )
    by_torch, native = routers(routing, hidden, seed)
    x = tokens(num_tokens, hidden, seed)
    expected, routed = by_torch(x), native(x)
    assert routed.experts.tolist() == expected.experts.tolist()
    torch.testing.assert_close(routed.weights, expected.weights, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("score", SCORES)
def test_a_token_has_the_same_bits_in_any_batch(score):
    routing = Routing(num_experts=37, top_k=4, score=score, sparsemixer_threshold=0.5)
    _, native = routers(routing, 300)
    x = tokens(70, 300)
    together = native(x)
    for first, last in ((0, 1), (3, 5), (9, 40), (69, 70)):
        part = native(x[first:last])
        assert part.experts.tolist() == together.experts[first:last].tolist()
        assert same_bits(part.weights, together.weights[first:last])


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_still_choose_different_experts(score, value):
    routing = Routing(num_experts=5, top_k=3, score=score, sparsemixer_threshold=0.5)
    _, native = routers(routing, 16)
    x = tokens(4, 16)
    x[1] = value
    x[2, 3] = value
    for row in native(x).experts.tolist():
        assert len(set(row)) == 3
        assert set(row) <= set(range(5))


def test_equal_scores_choose_the_first_experts():
    _, native = routers(Routing(num_experts=6, top_k=2), 8)
    assert native(torch.zeros(1, 8)).experts.tolist() == [[0, 1]]


def test_wrong_inputs_are_refused():
    _, native = routers(Routing(num_experts=6, top_k=2), 8)
    with pytest.raises(ValueError, match=r"float32 \[\.\.\., 8\]"):
        native.kernel(torch.zeros(1, 9))
    with pytest.raises(ValueError, match="bfloat16"):
        native.kernel(torch.zeros(1, 8, dtype=torch.bfloat16))
    groups = cpu_moe.RowGroups(range(2))
    pairs, rows, ends = groups.group(torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match="float64"):
        groups.gather(torch.zeros(2, 3).double(), pairs, ends, None)
    with pytest.raises(ValueError, match="float64"):
        groups.combine(torch.zeros(2, 3).double(), rows, None)
    with pytest.raises(ValueError, match="rows must be float32"):
        cpu_moe.ClampedGate(1.0, 1.0)(torch.zeros(1, 3))


@pytest.mark.parametrize("width", [1, 7, 16, 50])
def test_the_clamped_gate_is_the_formula(width):
    gate_up = tokens(5, 2 * width) * 4
    gate, up = gate_up.double().chunk(2, -1)
    gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0)
    expected = (up + 1) * gate * (1.7 * gate).sigmoid()
    out = cpu_moe.ClampedGate(1.7, 2.0)(gate_up)
    torch.testing.assert_close(out, expected.float(), rtol=2e-6, atol=1e-6)
