"""Values of a config.json: right ones come back, wrong ones are named."""

import math

import pytest

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues

VALUES = ConfigValues(
    {
        "n": 4,
        "x": 0.5,
        "on": True,
        "word": "silu",
        "list": ["a"],
        "none": None,
        "inner": {"k": 1},
        "zero": 0,
        "wholes": [0, 3],
    },
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
    assert (VALUES.whole("zero"), VALUES.whole("n")) == (0, 4)
    assert VALUES.wholes("wholes") == (0, 3)


@pytest.mark.parametrize("key", ["none", "missing"])
def test_null_counts_as_missing(key):
    assert VALUES.count(key, 3) == 3
    assert VALUES.positive(key, 0.1) == 0.1
    assert VALUES.text(key, "x") == "x"
    assert VALUES.names(key) == ()
    assert VALUES.mapping(key) == {}
    assert VALUES.whole(key, 2) == 2
    assert VALUES.wholes(key) == ()
    with pytest.raises(UnsupportedModelError, match=f"AcmeForCausalLM: config.json has no {key}"):
        VALUES.count(key)


def test_a_null_flag_is_false_and_a_missing_one_its_default():
    assert VALUES.flag("none", True) is False
    assert VALUES.flag("none") is False
    assert VALUES.flag("missing", True) is True
    with pytest.raises(UnsupportedModelError, match="has no missing"):
        VALUES.flag("missing")


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("count", 0), ("count", -1), ("count", 1.5), ("count", "4"), ("count", True),
        ("positive", 0), ("positive", -0.5), ("positive", math.inf), ("positive", math.nan),
        ("positive", "1"), ("positive", True), ("flag", 1), ("flag", "true"), ("text", 1),
        ("names", "ab"), ("names", [1]), ("mapping", []), ("whole", -1), ("whole", 0.0),
        ("whole", False), ("whole", "0"), ("wholes", 3), ("wholes", [-1]), ("wholes", [1, True]),
        ("wholes", ["1"]), ("count", 2**31), ("count", 10**400), ("whole", 2**31),
        ("wholes", [2**31]), ("positive", 10**400), ("positive", 1e39), ("numbers", [10**400]),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_key(method, wrong):
    values = ConfigValues({"key": wrong}, "Acme", prefix="inner.")
    with pytest.raises(UnsupportedModelError, match=r"Acme: inner\.key in config\.json must be"):
        getattr(values, method)("key")


def test_counts_of_what_is_made_one_by_one_have_lower_limits():
    values = ConfigValues({"n_layer": 10_001}, "Acme", aliases={"num_hidden_layers": "n_layer"})
    with pytest.raises(
        UnsupportedModelError,
        match=r"n_layer in config\.json must be a whole number from 1 to 10000, got 10001",
    ):
        values.count("num_hidden_layers")
    assert values.count("n_layer") == 10_001


def test_errors_of_a_nested_object_have_its_path():
    values = ConfigValues({"outer": {"inner": {"key": 0}}}, "Acme")
    inner = values.nested("outer").nested("inner")
    with pytest.raises(UnsupportedModelError, match=r"outer\.inner\.key in config\.json must"):
        inner.count("key")
    assert values.nested("missing").config == {}
    with pytest.raises(UnsupportedModelError, match=r"outer in config\.json must be an object"):
        ConfigValues({"outer": 1}, "Acme").nested("outer")
