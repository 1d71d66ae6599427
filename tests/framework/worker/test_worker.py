"""A worker is one rank of a grid: together they compute what a single one computes."""

import pytest
from grid_engine import Grid
from grid_scenarios import (
    SCENARIOS,
    SHAPES,
    Outcome,
    check_same,
    run_scenario,
    write_shape,
)

from quire.testing.checkpoints import WrittenCheckpoint

PLAIN = {"kernels": "torch"}
GRIDS = [
    Grid(tp_size, starts)
    for starts in ((0,), (0, 2))
    for tp_size in (1, 2, 4)
    if tp_size > 1 or starts != (0,)
]
BOTH = Grid(2, (0, 2))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> dict[str, WrittenCheckpoint]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {shape: write_shape(folder / shape, shape) for shape in SHAPES}


@pytest.fixture(scope="module")
def alone(checkpoints):
    """What a single worker returns for a scenario."""
    found: dict[tuple[str, str], Outcome] = {}

    def outcome(shape: str, scenario: str) -> Outcome:
        key = (shape, scenario)
        if key not in found:
            found[key] = run_scenario(checkpoints[shape].folder, scenario, Grid(), **PLAIN)
        return found[key]

    return outcome


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_a_grid_computes_what_one_worker_computes(checkpoints, alone, grid):
    found = run_scenario(checkpoints["llama"].folder, "mixed", grid, **PLAIN)
    check_same(found, alone("llama", "mixed"))


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "llama"])
def test_every_architecture_can_be_sharded_and_staged(checkpoints, alone, shape):
    found = run_scenario(checkpoints[shape].folder, "mixed", BOTH, **PLAIN)
    check_same(found, alone(shape, "mixed"))


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name != "mixed"])
def test_every_feature_works_on_stages_with_shards(checkpoints, alone, scenario):
    found = run_scenario(checkpoints["qwen3"].folder, scenario, BOTH, **PLAIN)
    check_same(found, alone("qwen3", scenario))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("grid", [*GRIDS, Grid(2, (0, 1, 2))], ids=str)
def test_every_feature_of_every_architecture_works_on_every_grid(
    checkpoints, alone, grid, shape, scenario
):
    found = run_scenario(checkpoints[shape].folder, scenario, grid, **PLAIN)
    check_same(found, alone(shape, scenario))
