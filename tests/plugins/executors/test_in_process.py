"""The in-process executor passes the conformance kit, and says what it cannot do."""

import pytest

from quire.errors import RefusedError
from quire.interfaces.executor import WorkerGrid, WorkerLaunch
from quire.plugins.loading import load_plugins
from quire.testing.executor import ExecutorContract, NotingWorker
from quire_executors.in_process import InProcessExecutor


class TestInProcess(ExecutorContract):
    executor_class = InProcessExecutor
    capabilities = load_plugins().registries.executors.entry("in_process").capabilities


def launch_of(grid, notes):
    return WorkerLaunch(
        grid=grid,
        make=lambda: NotingWorker(notes),
        spawn=lambda rank: None,
        listen=lambda host: None,
        start_helper=lambda module: None,
    )


def test_the_worker_is_called_directly(tmp_path):
    placed = InProcessExecutor().place(launch_of(WorkerGrid(), tmp_path / "calls"))
    assert type(placed) is NotingWorker


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        (WorkerGrid(tp_size=2), "2 are needed .tensor_parallel_size 2, pipeline_parallel_size 1."),
        (WorkerGrid(pp_size=3), "3 are needed .*--executor processes"),
    ],
)
def test_a_refusal_names_the_sizes_and_the_way_out(grid, reason, tmp_path):
    with pytest.raises(RefusedError, match=reason):
        InProcessExecutor().place(launch_of(grid, tmp_path / "calls"))
