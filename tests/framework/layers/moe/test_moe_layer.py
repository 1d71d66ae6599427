"""A mixture of experts adds the MLP that all tokens share, gated or not."""

import pytest
import torch
from moe_parts import HIDDEN, STEP, hidden_states, load, make_moe, random_tensors
from torch import nn

from quire.layers import Layer, Routing

ROUTING = Routing(num_experts=4, top_k=2)
X = hidden_states(5)


class Doubling(Layer):
    """A shared expert of one matrix."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(HIDDEN) * 2, requires_grad=False)

    def forward(self, x, batch):
        return x @ self.weight


@pytest.mark.parametrize("has_gate", [True, False])
def test_the_shared_expert_is_added_by_its_gate(has_gate, tmp_path):
    moe = make_moe(ROUTING, shared_expert=Doubling(), has_shared_gate=has_gate)
    plain = make_moe(ROUTING)
    tensors = random_tensors(moe)
    load(moe, tensors, tmp_path)
    load(plain, {name: tensors[name] for name in random_tensors(plain)}, tmp_path)
    shared = X @ tensors["mlp.shared_expert.weight"]
    if has_gate:
        shared = shared * torch.sigmoid(X @ tensors["mlp.shared_expert_gate.weight"].T)
    torch.testing.assert_close(moe(X, STEP), plain(X, STEP) + shared)


def test_the_router_may_have_an_input_of_its_own(tmp_path):
    moe = make_moe(ROUTING)
    load(moe, random_tensors(moe), tmp_path)
    other = hidden_states(5, seed=9)
    routed = moe.gate(other)
    assert not torch.equal(routed.experts, moe.gate(X).experts)
    torch.testing.assert_close(moe(X, STEP, other), moe.experts(X, routed))
