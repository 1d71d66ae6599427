"""Routers: scores in float32, and the weights of the chosen experts."""

from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT
from moe_parts import HIDDEN, hidden_states, load, make_moe, random_tensors

from quire.layers import Routing
from quire.layers.linear.row_tiles import same_bits

SCORES = ("softmax", "sigmoid", "top_k_softmax", "top_k_sigmoid", "sparsemixer")


def test_the_bias_of_the_choice_does_not_change_a_weight(tmp_path):
    routing = Routing(num_experts=4, top_k=1, score="sigmoid", has_choice_bias=True)
    moe = make_moe(routing)
    tensors = random_tensors(moe)
    tensors["mlp.gate.e_score_correction_bias"] = torch.tensor([0.0, 0.0, 9.0, 0.0])
    load(moe, tensors, tmp_path)
    x = hidden_states(6)
    routed = moe.gate(x)
    assert routed.experts.unique().tolist() == [2]
    torch.testing.assert_close(routed.weights[:, 0], (x @ tensors["mlp.gate.weight"][2]).sigmoid())


def test_experts_of_other_groups_are_never_chosen(tmp_path):
    routing = Routing(num_experts=8, top_k=3, num_groups=4, top_groups=2)
    moe = load(make_moe(routing), random_tensors(make_moe(routing)), tmp_path)
    groups = moe.gate(hidden_states(50)).experts // 2
    assert max(len(set(row)) for row in groups.tolist()) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_scored_in_float32(dtype, tmp_path):
    routing = Routing(num_experts=6, top_k=2)
    narrow = make_moe(routing, replace(CONTEXT, dtype=dtype))
    wide = make_moe(routing)
    for moe in (narrow, wide):
        load(moe, random_tensors(wide), tmp_path)
    x = hidden_states(30).to(dtype)
    assert narrow.gate.weight.dtype is torch.float32
    torch.testing.assert_close(narrow.gate(x).weights, wide.gate(x.float()).weights)


@pytest.mark.parametrize("score", SCORES)
def test_batch_invariant_weights_have_the_same_bits_alone(score, tmp_path):
    routing = Routing(num_experts=24, top_k=3, score=score, sparsemixer_threshold=0.5)
    moe = make_moe(routing, replace(CONTEXT, batch_invariant=True))
    load(moe, random_tensors(moe), tmp_path)
    x = hidden_states(35)
    together = moe.gate(x)
    for row in range(0, 35, 4):
        alone = moe.gate(x[row : row + 1])
        assert alone.experts[0].tolist() == together.experts[row].tolist()
        assert same_bits(alone.weights[0], together.weights[row])


def test_the_normed_input_is_scaled_by_the_vector_and_the_root_of_the_size(tmp_path):
    routing = Routing(num_experts=4, top_k=2, input_norm_eps=1e-6)
    moe = make_moe(routing)
    tensors = random_tensors(moe)
    load(moe, tensors, tmp_path)
    x = hidden_states(5).double()
    normed = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    inputs = normed * tensors["mlp.gate.scale"] / HIDDEN**0.5
    scores = (inputs @ tensors["mlp.gate.weight"].double().T).softmax(-1)
    torch.testing.assert_close(moe.gate(x.float()).weights, scores.topk(2, -1).values.float())
