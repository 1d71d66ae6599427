"""Defaults of executors: one device, and one worker."""

from quire.interfaces.executor import ExecutorCapabilities, WorkerGrid, WorkerLaunch


def test_an_executor_that_declares_nothing_serves_one_device():
    assert ExecutorCapabilities().max_tensor_parallel_size == 1


def test_a_launch_without_a_grid_has_one_worker():
    assert WorkerLaunch(lambda rank: rank).grid == WorkerGrid(tp_size=1, pp_size=1)
