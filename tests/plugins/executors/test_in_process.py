"""The in-process executor passes the conformance kit, and says what it cannot do."""

import pytest

from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import WorkerGrid, WorkerLaunch
from quire.interfaces.kv_cache import KVPlan
from quire.plugins.loading import load_plugins
from quire.testing.executor import ExecutorContract, NotingWorker, WorkerFaultError
from quire_executors.in_process import InProcessExecutor


class TestInProcess(ExecutorContract):
    executor_class = InProcessExecutor
    capabilities = load_plugins().registries.executors.entry("in_process").capabilities


@pytest.fixture
def executor(tmp_path):
    return InProcessExecutor(WorkerLaunch(lambda rank: NotingWorker(rank, tmp_path, "sample")))


def test_the_worker_is_called_directly(executor):
    worker = executor.start()
    assert isinstance(worker, NotingWorker)
    with pytest.raises(WorkerFaultError, match="sample fails on rank 0"):
        worker.allocate(KVPlan(num_blocks=2, groups=())).sample(7, [])


def test_errors_name_the_state_of_the_worker(executor):
    with pytest.raises(EngineDeadError, match="not running"):
        executor.check_health()
    executor.start()
    with pytest.raises(EngineDeadError, match="running already"):
        executor.start()


def test_it_can_be_started_again_after_a_shutdown(executor):
    for _ in range(2):
        assert executor.start().load().available_kv_bytes == 100
        executor.check_health()
        executor.shutdown()


@pytest.mark.parametrize(
    ("grid", "reason"),
    [
        (WorkerGrid(tp_size=2), "tensor_parallel_size is 2"),
        (WorkerGrid(pp_size=2), "runs one worker, but the model needs 2"),
    ],
)
def test_a_refusal_names_the_size(grid, reason):
    with pytest.raises(RefusedError, match=reason):
        InProcessExecutor(WorkerLaunch(lambda rank: None, grid=grid))
