"""Rotary embeddings of Phi-3: former names, and the length of the training."""

import json
from typing import Any

import pytest
from family_cases import longrope

from quire.layers.attention.rope_scaling import LongRopeScaling
from quire.testing.model import TINY_SIZES
from quire_models.family_table import read_decoder_config

FACTORS = {name: longrope(8)[name] for name in ("short_factor", "long_factor")}


def scaling(**values: Any) -> Any:
    config = {**TINY_SIZES, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], **values}
    [(rope, _)] = read_decoder_config("Phi3ForCausalLM", config).ropes
    return rope.scaling


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
@pytest.mark.parametrize(
    ("key", "name"),
    [("rope_scaling", "type"), ("rope_scaling", "rope_type"), ("rope_parameters", "rope_type")],
)
def test_every_name_of_a_scaling_is_longrope(kind, key, name):
    found = scaling(**{key: {name: kind, **FACTORS}}, original_max_position_embeddings=16)
    assert isinstance(found, LongRopeScaling)
    assert found.original_max_positions == 16


@pytest.mark.parametrize("outside", [{}, {"original_max_position_embeddings": 64}])
@pytest.mark.parametrize("kind", ["longrope", "yarn"])
def test_the_length_of_the_training_is_that_of_transformers(outside, kind):
    from transformers import CONFIG_MAPPING

    inside = {"rope_type": kind, **FACTORS, "original_max_position_embeddings": 32}
    given = {"max_position_embeddings": 8192, "rope_parameters": inside, **outside}
    theirs = CONFIG_MAPPING["phi3"].from_dict({**TINY_SIZES, **json.loads(json.dumps(given))})
    expected = theirs.rope_parameters["original_max_position_embeddings"]
    assert scaling(**given).original_max_positions == expected
