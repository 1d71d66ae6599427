"""The default duration of a step is that of the committed measurements."""

import json
from pathlib import Path
from statistics import median

import pytest

from quire.cli.bench.cluster.step_time import StepTime
from quire.cli.bench.model_shapes import SHAPES

RESULTS = Path(__file__).parents[5] / "benchmarks" / "results" / "cpu.json"


def test_a_step_is_a_sum():
    assert StepTime(1.0, 0.1, 0.01).seconds(5, 20) == pytest.approx(1.7)


def test_the_defaults_are_fitted_to_the_committed_figures():
    stages = json.loads(RESULTS.read_text())["native"]["stages"]
    rounds = stages["single"]["rounds"]
    decode, prefill = (
        median(each["figures"]["quire"][figure] for each in rounds)
        for figure in ("decode_tok_s", "prefill_tok_s")
    )
    step = StepTime()
    assert 1 / step.seconds(1, 160) == pytest.approx(decode, rel=0.1)
    assert 128 / step.seconds(128, 64) == pytest.approx(prefill, rel=0.1)
    shape = SHAPES["qwen3-0.6b"]
    cached = 2 * 4 * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]
    assert cached == pytest.approx(229e3, rel=0.01)
