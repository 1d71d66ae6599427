"""A layer's children are found without a search, and are the same modules as ever."""

import copy

import pytest
import torch
from torch import nn

from quire.layers.layer import Layer


class Pair(Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 2)


def check(pair, first):
    assert pair.first is first
    assert dict(pair.named_children()).get("first") is first
    assert vars(pair).get("first") is first


def test_a_child_is_an_attribute_and_a_module():
    pair = Pair()
    check(pair, pair.first)
    assert [name for name, _ in pair.named_parameters()] == [
        "first.weight", "first.bias", "second.weight", "second.bias",
    ]  # fmt: skip


def test_a_child_that_is_replaced_or_taken_away_is_not_found_any_more():
    pair, other = Pair(), nn.Identity()
    pair.first = other
    check(pair, other)
    pair.first = None
    check(pair, None)
    pair.first = other
    del pair.first
    with pytest.raises(AttributeError):
        _ = pair.first


def test_a_copy_has_children_of_its_own():
    pair = Pair()
    twin = copy.deepcopy(pair)
    assert twin.first is not pair.first
    check(twin, twin.first)


def test_a_parameter_that_there_is_not_is_an_attribute_until_there_is_one():
    pair, weight = Pair(), nn.Parameter(torch.ones(2))
    pair.register_parameter("bias", None)
    assert vars(pair)["bias"] is None
    assert "bias" not in dict(pair.named_parameters())
    pair.register_parameter("bias", weight)
    assert pair.bias is weight
    pair.bias = None
    assert vars(pair)["bias"] is None
    del pair.bias
    with pytest.raises(AttributeError):
        _ = pair.bias


def test_a_parameter_does_not_hide_an_attribute():
    pair = Pair()
    pair.size = 3
    with pytest.raises(KeyError, match="size"):
        pair.register_parameter("size", None)
    assert pair.size == 3


def test_a_parameter_that_takes_the_place_of_an_attribute_is_found():
    pair, weight = Pair(), nn.Parameter(torch.ones(2))
    pair.scale = 3
    pair.scale = weight
    assert pair.scale is weight
    assert "scale" in dict(pair.named_parameters())
