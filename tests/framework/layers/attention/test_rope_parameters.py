"""Rotary embeddings as transformers 5 and 4 write them, and what is refused."""

import pytest

from quire.errors import UnsupportedModelError
from quire.layers.attention.rope_parameters import RopeParameters, read_rope
from quire.layers.config_values import ConfigValues

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


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
            RopeParameters(10000.0, "linear", 2.0),
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 8.0}},
            RopeParameters(8.0, "linear", 3.0),
        ),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 3.0},
            },
            RopeParameters(10000.0, "linear", 3.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            RopeParameters(5e5, "llama3", 8.0, 1.0, 4.0, 8192),
        ),
        (
            {
                "rope_scaling": {
                    "type": "llama3",
                    **LLAMA3,
                    "original_max_position_embeddings": None,
                }
            },
            RopeParameters(1e4, "llama3", 8.0, 1.0, 4.0, 99),
        ),
    ],
)
def test_every_spelling_is_read(config, rope):
    assert read(**config) == rope


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
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
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(config, named):
    with pytest.raises(UnsupportedModelError, match=named):
        read(**config)


def test_the_newer_name_of_a_kind_counts():
    scaling = {"type": "yarn", "rope_type": "linear", "factor": 2.0}
    assert read(rope_scaling=scaling).kind == "linear"
    scaling = {"type": "linear", "rope_type": "default", "factor": 2.0}
    assert read(rope_parameters=scaling).kind == "default"
