"""The in-process executor forwards every call to its one worker."""

import pytest

from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import Worker, WorkerGrid, WorkerLaunch
from quire.interfaces.kv_cache import KVPlan
from quire.messages import (
    AdapterRef,
    LoadAdapter,
    RowBitmask,
    SlotResult,
    StepPlan,
    StepResult,
    WorkerInfo,
)
from quire.plugins.loading import load_plugins
from quire_executors.in_process import InProcessExecutor

INFO = WorkerInfo(device="cpu", dtype="float32", weight_bytes=3, available_kv_bytes=5)
PIRATE = LoadAdapter(AdapterRef("pirate", "adapters/pirate"))
MASK = RowBitmask(0, 0, b"\x03\x00\x00\x00")


class CountingWorker(Worker):
    """A worker without a model: its tokens are the numbers of its plans."""

    def __init__(self, rank):
        self.rank = rank
        self.num_blocks = 0
        self.launched = []
        self.num_shutdowns = 0

    def load(self):
        return INFO

    def allocate(self, plan):
        self.num_blocks = plan.num_blocks

    def execute(self, plan):
        self.launched.append(plan.plan_id)

    def sample(self, plan_id, masks):
        if plan_id not in self.launched:
            raise LookupError(f"plan {plan_id} was never launched")
        self.masks = masks

    def collect(self, plan_id):
        results = [SlotResult(mask.slot, [plan_id]) for mask in self.masks]
        return StepResult(plan_id=plan_id, results=results)

    def control(self, command):
        return (command, self.rank)

    def shutdown(self):
        self.num_shutdowns += 1


def started():
    workers = []

    def make(rank):
        workers.append(CountingWorker(rank))
        return workers[-1]

    executor = InProcessExecutor(WorkerLaunch(make))
    assert executor.start() is INFO
    return executor, workers[0]


def test_a_step_goes_through_the_worker_and_back():
    executor, worker = started()
    executor.allocate(KVPlan(num_blocks=9, groups=()))
    executor.execute(StepPlan(plan_id=4, requests=[]))
    executor.sample(4, [MASK])
    assert executor.collect(4).results == [SlotResult(0, [4])]
    assert worker.num_blocks == 9


def test_the_worker_is_rank_zero_and_runs_controls():
    executor, _ = started()
    assert executor.control(PIRATE) == (PIRATE, 0)


def test_what_the_worker_raises_is_not_changed():
    executor, _ = started()
    with pytest.raises(LookupError, match="plan 7 was never launched"):
        executor.sample(7, [])


def test_a_started_worker_is_healthy():
    executor, _ = started()
    executor.check_health()


def test_starting_twice_is_an_error():
    executor, _ = started()
    with pytest.raises(EngineDeadError, match="running already"):
        executor.start()


def test_shutting_down_twice_reaches_the_worker_once():
    executor, worker = started()
    executor.shutdown()
    executor.shutdown()
    assert worker.num_shutdowns == 1


def test_shutting_down_before_the_start_is_harmless():
    InProcessExecutor(WorkerLaunch(CountingWorker)).shutdown()


@pytest.mark.parametrize("is_shut_down", [False, True])
def test_without_a_worker_every_call_says_so(is_shut_down):
    executor = InProcessExecutor(WorkerLaunch(CountingWorker))
    if is_shut_down:
        executor.start()
        executor.shutdown()
    for call in (
        executor.check_health,
        lambda: executor.allocate(KVPlan(num_blocks=2, groups=())),
        lambda: executor.execute(StepPlan(plan_id=1, requests=[])),
        lambda: executor.sample(1, []),
        lambda: executor.collect(1),
        lambda: executor.control(PIRATE),
    ):
        with pytest.raises(EngineDeadError, match="not running"):
            call()


def test_it_can_be_started_again_after_a_shutdown():
    executor, first = started()
    executor.shutdown()
    executor.start()
    assert executor.control(PIRATE)[1] == 0
    assert first.num_shutdowns == 1


def test_several_devices_are_refused():
    with pytest.raises(RefusedError, match="tensor_parallel_size is 2"):
        InProcessExecutor(WorkerLaunch(CountingWorker, grid=WorkerGrid(tp_size=2)))


def test_several_stages_are_refused():
    with pytest.raises(RefusedError, match="runs one worker, but the model needs 2"):
        InProcessExecutor(WorkerLaunch(CountingWorker, grid=WorkerGrid(pp_size=2)))


def test_it_declares_one_device():
    entry = load_plugins().registries.executors.entry("in_process")
    assert entry.capabilities.max_tensor_parallel_size == 1
