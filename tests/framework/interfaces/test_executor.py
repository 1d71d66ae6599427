"""Defaults of executors, and the places of ranks in a grid."""

import pytest

from quire.interfaces.executor import ExecutorCapabilities, WorkerGrid


def test_an_executor_that_declares_nothing_serves_one_device():
    limits = ExecutorCapabilities()
    assert (limits.max_tensor_parallel_size, limits.max_pipeline_parallel_size) == (1, 1)


def test_a_grid_is_one_worker_unless_it_says_otherwise():
    assert WorkerGrid() == WorkerGrid(tp_size=1, pp_size=1)
    assert WorkerGrid().size == 1


@pytest.mark.parametrize(
    ("grid", "places"),
    [
        (WorkerGrid(), [(0, 0)]),
        (WorkerGrid(tp_size=3), [(0, 0), (0, 1), (0, 2)]),
        (WorkerGrid(pp_size=2), [(0, 0), (1, 0)]),
        (WorkerGrid(2, 2), [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ],
)
def test_ranks_fill_one_stage_after_the_other(grid, places):
    assert grid.size == len(places)
    assert [grid.place(rank) for rank in range(grid.size)] == places
