"""Rotary embeddings as transformers 5 and 4 write them, and what is refused."""

import math

import pytest

from quire.errors import UnsupportedModelError
from quire.layers.attention.rope_parameters import RopeParameters, read_rope
from quire.layers.attention.rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    YarnScaling,
)
from quire.layers.config_values import ConfigValues

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def llama3(original_max_positions) -> Llama3Scaling:
    return Llama3Scaling(
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=original_max_positions,
    )


def read(**config) -> RopeParameters:
    return read_rope(ConfigValues({"max_position_embeddings": 99, **config}, "Any"))


@pytest.mark.parametrize(
    ("config", "rope"),
    [
        ({}, RopeParameters(10000.0)),
        ({"rope_theta": 5e5}, RopeParameters(5e5)),
        ({"rope_theta": 5, "rope_scaling": None}, RopeParameters(5.0)),
        ({"rope_parameters": {"rope_theta": 7.0, "rope_type": "default"}}, RopeParameters(7.0)),
        ({"rope_theta": 6.0, "rope_parameters": {"rope_theta": 7.0}}, RopeParameters(7.0)),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            RopeParameters(10000.0, LinearScaling(2.0)),
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 8.0}},
            RopeParameters(8.0, LinearScaling(3.0)),
        ),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 3.0},
            },
            RopeParameters(10000.0, LinearScaling(3.0)),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            RopeParameters(5e5, llama3(8192)),
        ),
        (
            {
                "rope_scaling": {
                    "type": "llama3",
                    **LLAMA3,
                    "original_max_position_embeddings": None,
                }
            },
            RopeParameters(1e4, llama3(99)),
        ),
    ],
)
def test_every_spelling_is_read(config, rope):
    assert read(**config) == rope


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_scaling": {"type": "ntk"}}, "'ntk' is not supported; quire supports default"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "no rope_parameters.short_factor"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": []}}, "short_factor"),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": [1, 0]}}, "short_factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0, "alpha": 3.0}}, "alpha"),
        ({"rope_scaling": {"type": "dynamic"}}, "no rope_parameters.factor"),
        ({"rope_scaling": {"type": "yarn", "truncate": 1}}, "truncate"),
        ({"rope_scaling": {"type": "linear"}}, "no rope_parameters.factor"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": float("nan")}}, "factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_theta": "10000"}, "rope_theta"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": None}}, "low_freq"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "high_freq_factor": 1.0}}, "high_freq"),
        (
            {"rope_theta": 1, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
            "rope_parameters.rope_theta in config.json must be a number above 1",
        ),
        (
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "short_factor": [1],
                    "long_factor": [2],
                },
                "original_max_position_embeddings": 1,
            },
            "original_max_position_embeddings in config.json must be a whole number from 2",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(config, named):
    with pytest.raises(UnsupportedModelError, match=named):
        read(**config)


@pytest.mark.parametrize(("head_dim", "alpha"), [(2, 1000.0), (4, 1e30)])
def test_an_alpha_that_gives_no_finite_base_is_refused_by_name(head_dim, alpha):
    rope = {"rope_type": "dynamic", "alpha": alpha}
    values = ConfigValues({"max_position_embeddings": 99, "rope_parameters": rope}, "Any")
    with pytest.raises(UnsupportedModelError, match=r"rope_parameters\.alpha .*head_dim"):
        read_rope(values, head_dim=head_dim)


@pytest.mark.parametrize(("value", "is_truncated"), [(None, False), (False, False), (True, True)])
def test_a_yarn_whose_truncate_is_null_is_not_truncated(value, is_truncated):
    yarn = {"rope_type": "yarn", "factor": 4.0, "truncate": value}
    assert read(rope_parameters=yarn).scaling.truncate is is_truncated


def test_the_newer_name_of_a_kind_counts():
    scaling = {"type": "yarn", "rope_type": "linear", "factor": 2.0}
    assert read(rope_scaling=scaling).scaling == LinearScaling(2.0)
    scaling = {"type": "linear", "rope_type": "default", "factor": 2.0}
    assert read(rope_parameters=scaling).scaling is None


def test_a_part_of_the_head_is_rotated_by_the_factor_of_the_file_or_of_the_architecture():
    values = ConfigValues({}, "Any")
    assert read_rope(values, head_dim=20, partial_factor=0.5).rotary_dim == 10
    assert read_rope(values, head_dim=20).rotary_dim is None
    values = ConfigValues({"rope_parameters": {"partial_rotary_factor": 0.25}}, "Any")
    assert read_rope(values, head_dim=32, partial_factor=0.5).rotary_dim == 8


@pytest.mark.parametrize(("factor", "head_dim"), [(0.5, 10), (0.01, 64), (1.5, 64)])
def test_a_part_that_is_no_number_of_pairs_is_refused(factor, head_dim):
    values = ConfigValues({"partial_rotary_factor": factor}, "Any")
    with pytest.raises(UnsupportedModelError, match="partial_rotary_factor"):
        read_rope(values, head_dim=head_dim)


@pytest.mark.parametrize("name", ["longrope", "su"])
def test_longrope_is_read_under_its_former_name_too(name):
    factors = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 4]}
    rope = read(rope_scaling={"type": name, **factors}, original_max_position_embeddings=33)
    attention_factor = math.sqrt(1 + math.log(3) / math.log(33))
    assert rope.scaling == LongRopeScaling(
        short_factors=(1.0, 1.5),
        long_factors=(2.0, 4.0),
        original_max_positions=33,
        short_attention_factor=attention_factor,
        long_attention_factor=attention_factor,
    )


def test_scalings_know_the_original_context():
    yarn = read(rope_scaling={"rope_type": "yarn", "original_max_position_embeddings": 33})
    assert yarn.scaling == YarnScaling(
        factor=3.0, original_max_positions=33, attention_factor=0.1 * math.log(3) + 1
    )
    dynamic = read(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert dynamic.scaling == DynamicScaling(factor=2.0, original_max_positions=99)
    shared = {"rope_type": "proportional", "partial_rotary_factor": 0.25}
    proportional = read(rope_parameters=shared)
    assert proportional.scaling == ProportionalScaling(rotated_share=0.25)
    assert proportional.rotary_dim is None


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_the_original_length_beside_the_rotary_embedding_counts_before_its_own(key):
    rope = read(**{key: {"rope_type": "llama3", **LLAMA3}}, original_max_position_embeddings=33)
    assert rope.scaling == llama3(33)
