"""Frequencies of rotary embeddings, against those of transformers."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from quire.layers.attention.rope_frequencies import attention_factor, frequencies
from quire.layers.attention.rope_parameters import RopeParameters, read_rope
from quire.layers.config_values import ConfigValues

HEAD_DIM = 24
LISTS = {
    "short_factor": [1.0 + i / 7 for i in range(12)],
    "long_factor": [2.0 + i * i / 9 for i in range(12)],
    "original_max_position_embeddings": 64,
}
KINDS = {
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    "yarn without truncation": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
    },
    "yarn betas": {
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
    },
    "yarn magnitudes": {
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.707,
    },
    "yarn attention factor": {
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.5,
    },
    "longrope": LISTS,
    "longrope factor": {**LISTS, "factor": 8.0},
    "longrope attention factor": {**LISTS, "attention_factor": 1.2},
}


def read(kind: str, parameters, theta) -> tuple[RopeParameters, LlamaConfig]:
    rope = {"rope_type": kind.split()[0], "rope_theta": theta, **parameters}
    config = {"max_position_embeddings": 256, "rope_parameters": rope}
    theirs = LlamaConfig(head_dim=HEAD_DIM, **config)
    return read_rope(ConfigValues(config, "Any"), head_dim=HEAD_DIM), theirs


@pytest.mark.parametrize("max_positions", [64, 65, 256, 1000])
@pytest.mark.parametrize("theta", [100.0, 500000.0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_that_of_transformers(kind, theta, max_positions):
    rope, config = read(kind, KINDS[kind], theta)
    expected, factor = ROPE_INIT_FUNCTIONS[kind.split()[0]](config, seq_len=max_positions)
    found = frequencies(HEAD_DIM, rope, max_positions)
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=0)
    assert attention_factor(rope, max_positions) == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_proportional_frequencies_are_those_of_transformers(share):
    parameters = {"partial_rotary_factor": share, "factor": 2.0}
    rope, config = read("proportional", parameters, 1000.0)
    expected, _ = ROPE_INIT_FUNCTIONS["proportional"](config)
    torch.testing.assert_close(frequencies(HEAD_DIM, rope, 64), expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("kind", ["linear", "yarn", "dynamic"])
def test_a_partial_embedding_has_the_frequencies_of_a_smaller_head(kind):
    rope, config = read(kind, {**KINDS[kind], "partial_rotary_factor": 0.5}, 777.0)
    expected, _ = ROPE_INIT_FUNCTIONS[kind](config, seq_len=300)
    found = frequencies(HEAD_DIM, rope, 300)
    torch.testing.assert_close(found[: len(expected)], expected, rtol=2e-6, atol=0)
    assert not found[len(expected) :].any()


def test_a_short_engine_has_the_short_factors_of_longrope():
    rope, _ = read("longrope", LISTS, 1000.0)
    assert not torch.equal(frequencies(HEAD_DIM, rope, 64), frequencies(HEAD_DIM, rope, 65))
    assert torch.equal(frequencies(HEAD_DIM, rope, 65), frequencies(HEAD_DIM, rope, 256))
