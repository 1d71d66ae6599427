"""The vocabulary over one device or several."""

from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT
from torch import Tensor

from quire.layers import LayerContext, LMHead, TensorParallelGroup, VocabParallelEmbedding

WEIGHT = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))


class Recorded(TensorParallelGroup):
    """A rank whose peers have computed already; their results are given."""

    def __init__(self, rank: int, size: int, peers: list[Tensor]) -> None:
        self.rank, self.size, self.peers = rank, size, peers

    def all_reduce(self, x: Tensor) -> Tensor:
        return x + sum(self.peers)

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return torch.cat([*self.peers, x], dim)


def context(rank: int, size: int, *peers: Tensor) -> LayerContext:
    return replace(CONTEXT, tp=Recorded(rank, size, list(peers)))


def embedding(where: LayerContext) -> VocabParallelEmbedding:
    layer = VocabParallelEmbedding(7, 4, where)
    layer.load_weight("weight", WEIGHT, "embed_tokens")
    return layer


def test_an_id_is_a_row():
    ids = torch.tensor([3, 0, 6])
    assert torch.equal(embedding(CONTEXT)(ids), WEIGHT[ids])


def test_devices_add_up_to_the_whole():
    ids = torch.arange(7)
    first = embedding(context(0, 2, torch.zeros(1)))(ids)
    assert torch.equal(first[:4], WEIGHT[:4])
    assert torch.equal(first[4:], torch.zeros(3, 4))
    assert torch.equal(embedding(context(1, 2, first))(ids), WEIGHT)


def test_the_padding_of_the_last_device_is_zero():
    assert torch.equal(embedding(context(1, 2)).weight[3], torch.zeros(4))


def test_a_device_beyond_the_vocabulary_has_padding_only():
    layer = embedding(context(4, 5))
    assert torch.equal(layer.weight, torch.zeros(2, 4))


@pytest.mark.parametrize("tied", [False, True])
def test_logits_leave_the_padding_out(tied):
    hidden = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    logits = []
    for rank in range(2):
        where = context(rank, 2, *logits)
        head = LMHead(7, 4, where, tied_to=embedding(where) if tied else None)
        if not tied:
            head.load_weight("weight", WEIGHT, "lm_head")
        logits.append(head(hidden))
    assert logits[1].shape == (2, 7)
    torch.testing.assert_close(logits[1], hidden @ WEIGHT.T)


def test_logits_have_the_type_of_the_weight():
    head = LMHead(7, 4, replace(CONTEXT, dtype=torch.bfloat16))
    head.load_weight("weight", WEIGHT, "lm_head")
    assert head.weight.dtype is torch.bfloat16
    assert head(torch.ones(1, 4, dtype=torch.bfloat16)).dtype is torch.bfloat16
