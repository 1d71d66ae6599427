"""The step's cost by parts: no time counts twice, and nothing stays timed."""

from pathlib import Path

import pytest
from cpp_compilers import NEEDS_COMPILER

FOLDER = Path(__file__).parents[2] / "benchmarks" / "cpu"


@pytest.fixture
def step_cost(benchmark):
    return benchmark("step_cost")


class Kitchen:
    """A day in it takes as long as its own clock says."""

    now_s = 0.0

    def meal(self):
        Kitchen.now_s += 2
        self.dish()
        self.dish()

    def dish(self):
        Kitchen.now_s += 5


def test_a_part_inside_another_is_not_counted_twice(step_cost, monkeypatch):
    monkeypatch.setattr(step_cost.time, "perf_counter", lambda: Kitchen.now_s)
    meal, dish = Kitchen.meal, Kitchen.dish
    meter = step_cost.Meter()
    parts = [step_cost.Part(Kitchen, "meal", "step"), step_cost.Part(Kitchen, "dish", "dish")]
    with meter.timing(parts):
        for _ in range(3):
            Kitchen().meal()
            Kitchen.now_s += 1
    assert (Kitchen.meal, Kitchen.dish) == (meal, dish)
    before, first, second = meter.steps
    assert before == {"outside": 0}
    assert first == second == {"step": 2, "dish": 10, "outside": 1}


def test_every_part_of_a_step_takes_some_time(step_cost, monkeypatch):
    monkeypatch.setattr(step_cost, "MODELS", {"hollow": step_cost.MODELS["hollow"]})
    monkeypatch.setattr(step_cost, "NUM_RUNS", 1)
    monkeypatch.setattr(step_cost, "OUTPUT_LEN", 16)
    (row,) = step_cost.measure((2,), "torch", num_kv_blocks=64)
    assert (row["model"], row["requests"]) == ("hollow", 2)
    assert row["whole"] > 0
    assert all(taken > 0 for taken in row["parts"].values())
    assert {"schedule", "inputs", "model", "sampling", "outputs"} <= set(row["parts"])
    assert row["decode_steps"] == "without CPU graphs (--kernels torch)"


@NEEDS_COMPILER
def test_a_repeated_step_is_the_models_time(step_cost, monkeypatch):
    monkeypatch.setattr(step_cost, "MODELS", {"hollow": step_cost.MODELS["hollow"]})
    monkeypatch.setattr(step_cost, "NUM_RUNS", 1)
    monkeypatch.setattr(step_cost, "OUTPUT_LEN", 16)
    (row,) = step_cost.measure((2,), "native", num_kv_blocks=64)
    assert row["decode_steps"] == "replayed from CPU graphs"
    assert row["parts"]["model"] > 0
    assert row["parts"]["prepare"] == 0
