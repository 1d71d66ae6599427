"""The vocabulary over one device or several, and learned positions."""

from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT
from torch import Tensor, nn

from quire.errors import SettingsError
from quire.interfaces.quantization import LinearMethod, Quantization
from quire.layers import (
    LayerContext,
    LMHead,
    PositionEmbedding,
    TensorParallelGroup,
    VocabParallelEmbedding,
)

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


@pytest.mark.parametrize("tied", [False, True])
def test_a_head_has_the_logits_of_its_shard_without_padding(tied):
    hidden = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    expected = hidden @ WEIGHT.T
    for rank, token_ids in enumerate([range(3), range(3, 6), range(6, 7)]):
        where = context(rank, 3)
        head = LMHead(7, 4, where, tied_to=embedding(where) if tied else None)
        if not tied:
            head.load_weight("weight", WEIGHT, "lm_head")
        assert head.vocabulary.token_ids == token_ids
        torch.testing.assert_close(head(hidden), expected[:, list(token_ids)])


@pytest.mark.parametrize("layer", [LMHead, VocabParallelEmbedding])
@pytest.mark.parametrize("rank", [0, 4])
def test_every_rank_refuses_a_shard_without_tokens(layer, rank):
    with pytest.raises(SettingsError, match=r"7 tokens .*tensor_parallel_size=5 .*use 4 or fewer"):
        layer(7, 4, context(rank, 5))


def test_logits_have_the_type_of_the_weight():
    head = LMHead(7, 4, replace(CONTEXT, dtype=torch.bfloat16))
    head.load_weight("weight", WEIGHT, "lm_head")
    assert head.weight.dtype is torch.bfloat16
    assert head(torch.ones(1, 4, dtype=torch.bfloat16)).dtype is torch.bfloat16


class Doubled(LinearMethod):
    """Keeps twice the weight, so that it shows which weight is used."""

    def __init__(self, has_rows: bool) -> None:
        self.has_rows = has_rows

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        weight = nn.Parameter(torch.zeros(out_features, in_features), requires_grad=False)
        layer.register_parameter("weight", weight)

    def finish_loading(self, layer: nn.Module) -> None:
        layer.register_buffer("doubled", layer.get_parameter("weight").detach() * 2)
        layer.register_parameter("weight", None)

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        return x @ layer.get_buffer("doubled").T

    def rows(self, layer: nn.Module, token_ids: Tensor) -> Tensor:
        return layer.get_buffer("doubled")[token_ids]


class DoubleAll(Quantization):
    """Doubles what it is asked for."""

    def __init__(self, has_rows: bool) -> None:
        self.has_rows = has_rows

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def linear_method(self, module_name: str) -> LinearMethod:
        return Doubled(self.has_rows)


def tied_under(quantization: Quantization, where: LayerContext = CONTEXT):
    where = replace(where, quantization=quantization)
    layer = VocabParallelEmbedding(7, 4, where)
    head = LMHead(7, 4, where, tied_to=layer)
    layer.load_weight("weight", WEIGHT, "embed_tokens")
    layer.finish_loading()
    head.finish_loading()
    return layer, head


@pytest.mark.parametrize(("has_rows", "factor"), [(True, 2), (False, 1)])
def test_a_tied_weight_is_the_methods_if_it_has_rows(has_rows, factor):
    layer, head = tied_under(DoubleAll(has_rows))
    assert torch.equal(layer(torch.arange(7)), factor * WEIGHT)
    torch.testing.assert_close(head(torch.eye(4)), factor * WEIGHT.T)
    assert len(list(layer.parameters())) == (0 if has_rows else 1)


class Keeping(DoubleAll):
    """Asks for nothing: layers keep their weights as they are."""

    def linear_method(self, module_name: str) -> None:
        return None


@pytest.mark.parametrize(
    "quantization", [DoubleAll(False), Keeping(False)], ids=["no rows", "none"]
)
@pytest.mark.parametrize("prepack", [False, True])
def test_a_head_that_shares_a_plain_weight_has_the_narrow_numbers_of_the_file(
    quantization, prepack
):
    where = replace(CONTEXT, quantization=quantization, prepack=prepack)
    layer = VocabParallelEmbedding(7, 4, where)
    head = LMHead(7, 4, where, tied_to=layer)
    with torch.inference_mode():
        layer.load_weight("weight", WEIGHT.bfloat16(), "embed_tokens")
        layer.finish_loading()
        head.finish_loading()
        expected = WEIGHT.bfloat16().float()
        assert torch.equal(layer(torch.arange(7)), expected)
        torch.testing.assert_close(head(torch.eye(4)), expected.T)


def test_a_device_has_its_shard_of_a_tied_weight():
    ids = torch.arange(7)
    first, _ = tied_under(DoubleAll(True), context(0, 2, torch.zeros(1)))
    second, _ = tied_under(DoubleAll(True), context(1, 2, first(ids)))
    assert torch.equal(second(ids), 2 * WEIGHT)


def test_a_head_of_its_own_asks_the_quantization():
    head = LMHead(7, 4, replace(CONTEXT, quantization=DoubleAll(True)))
    head.load_weight("weight", WEIGHT, "lm_head")
    head.finish_loading()
    torch.testing.assert_close(head(torch.eye(4)), 2 * WEIGHT.T)


def test_a_weight_that_stays_narrow_gives_vectors_of_the_compute_type():
    layer = VocabParallelEmbedding(7, 4, replace(CONTEXT, quantization=Keeping(False)))
    layer.load_weight("weight", WEIGHT.bfloat16(), "embed_tokens")
    layer.finish_loading()
    assert layer.weight.dtype is torch.bfloat16
    vectors = layer(torch.arange(7))
    assert vectors.dtype is torch.float32
    assert torch.equal(vectors, WEIGHT.bfloat16().float())


@pytest.mark.parametrize("num_skipped_rows", [0, 2])
def test_a_position_is_a_row_behind_those_that_are_skipped(num_skipped_rows):
    for where in (CONTEXT, context(1, 2)):
        layer = PositionEmbedding(7 - num_skipped_rows, 4, where, num_skipped_rows=num_skipped_rows)
        assert layer.checkpoint_shape("weight", "wpe") == (7, 4)
        layer.load_weight("weight", WEIGHT, "wpe")
        positions = torch.tensor([3, 0, 4])
        assert torch.equal(layer(positions), WEIGHT[positions + num_skipped_rows])
