"""Values of a config.json: right ones come back, wrong ones are named."""

import math

import pytest

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues

VALUES = ConfigValues(
    {"n": 4, "x": 0.5, "on": True, "word": "silu", "list": ["a"], "none": None, "inner": {"k": 1}},
    "AcmeForCausalLM",
)


def test_values_come_back_with_their_types():
    assert VALUES.count("n") == 4
    assert VALUES.positive("x") == 0.5
    assert VALUES.positive("n") == 4.0
    assert VALUES.flag("on") is True
    assert VALUES.text("word") == "silu"
    assert VALUES.names("list") == ("a",)
    assert VALUES.mapping("inner") == {"k": 1}


@pytest.mark.parametrize("key", ["none", "missing"])
def test_null_counts_as_missing(key):
    assert VALUES.count(key, 3) == 3
    assert VALUES.positive(key, 0.1) == 0.1
    assert VALUES.flag(key, False) is False
    assert VALUES.text(key, "x") == "x"
    assert VALUES.names(key) == ()
    assert VALUES.mapping(key) == {}
    with pytest.raises(UnsupportedModelError, match=f"AcmeForCausalLM: config.json has no {key}"):
        VALUES.count(key)


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("count", 0), ("count", -1), ("count", 1.5), ("count", "4"), ("count", True),
        ("positive", 0), ("positive", -0.5), ("positive", math.inf), ("positive", math.nan),
        ("positive", "1"), ("positive", True), ("flag", 1), ("flag", "true"), ("text", 1),
        ("names", "ab"), ("names", [1]), ("mapping", []),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_key(method, wrong):
    values = ConfigValues({"key": wrong}, "Acme", prefix="inner.")
    with pytest.raises(UnsupportedModelError, match=r"Acme: inner\.key in config\.json must be"):
        getattr(values, method)("key")
