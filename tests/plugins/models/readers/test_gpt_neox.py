"""The rotary embedding of GPT-NeoX, whose keys have names of their own."""

from typing import Any

import pytest

from quire.layers.attention.rope_parameters import RopeParameters
from quire.testing.model import TINY_SIZES
from quire_models.family_table import read_decoder_config


def rope_of(**values: Any) -> RopeParameters:
    [(rope, _)] = read_decoder_config("GPTNeoXForCausalLM", {**TINY_SIZES, **values}).ropes
    return rope


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, RopeParameters(10_000.0, rotary_dim=4)),
        ({"rotary_emb_base": 777, "rotary_pct": 0.5}, RopeParameters(777.0, rotary_dim=8)),
        ({"rotary_pct": 1.0}, RopeParameters(10_000.0)),
        ({"rope_theta": 777, "partial_rotary_factor": 0.5}, RopeParameters(1e4, rotary_dim=4)),
        (
            {"rope_parameters": {"rope_theta": 777, "partial_rotary_factor": 0.5}},
            RopeParameters(777.0, rotary_dim=8),
        ),
    ],
)
def test_the_rotary_embedding_is_that_of_transformers(values, expected):
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING["gpt_neox"].from_dict({**TINY_SIZES, **values}).rope_parameters
    assert rope_of(**values) == rope_of(rope_parameters=config) == expected
