"""The kit of executors notices an executor that is wrong."""

from collections import deque

import pytest

from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import Executor, ExecutorCapabilities
from quire.messages import StepResult, WorkerInfo
from quire.testing.executor import ExecutorContract


class Two(Executor):
    """Up to two workers in this process."""

    max_size = 2

    def __init__(self, launch):
        super().__init__(launch)
        size = launch.grid.tp_size * launch.grid.pp_size
        if launch.grid.pp_size > 1 or size > self.max_size:
            raise RefusedError(f"{size} workers")
        self.size, self.workers = size, []

    def start(self):
        if self.workers:
            raise EngineDeadError("running")
        self.workers = [self.launch.make(rank) for rank in range(self.size)]
        infos = [worker.load() for worker in self.workers]
        return min(infos, key=lambda info: info.available_kv_bytes)

    def each(self, verb, *arguments):
        if not self.workers:
            raise EngineDeadError("not running")
        return [getattr(worker, verb)(*arguments) for worker in self.workers]

    def allocate(self, plan):
        self.each("allocate", plan)

    def execute(self, plan):
        self.each("execute", plan)

    def sample(self, plan_id, masks):
        self.each("sample", plan_id, masks)

    def collect(self, plan_id):
        return self.each("collect", plan_id)[0]

    def control(self, command):
        return self.each("control", command)[0]

    def check_health(self):
        if not self.workers:
            raise EngineDeadError("not running")

    def shutdown(self):
        workers, self.workers = self.workers, []
        for worker in workers:
            worker.shutdown()


class TestTwo(ExecutorContract):
    """A right executor passes."""

    executor_class = Two
    capabilities = ExecutorCapabilities(max_tensor_parallel_size=2)


class FirstOnly(Two):
    def allocate(self, plan):
        self.workers[0].allocate(plan)


class LargestMemory(Two):
    def start(self):
        super().start()
        return WorkerInfo(device="cpu", dtype="float32", weight_bytes=3, available_kv_bytes=100)


class NoMasks(Two):
    def sample(self, plan_id, masks):
        super().sample(plan_id, [])


class OneAtATime(Two):
    def execute(self, plan):
        if getattr(self, "busy", False):
            raise EngineDeadError("one step at a time")
        self.busy = True
        super().execute(plan)


class WrongStep(Two):
    def execute(self, plan):
        self.__dict__.setdefault("plans", deque()).append(plan.plan_id)
        super().execute(plan)

    def collect(self, plan_id):
        return super().collect(self.plans.pop())


class LastResult(Two):
    def control(self, command):
        return self.each("control", command)[-1]


class Swallows(Two):
    def execute(self, plan):
        try:
            super().execute(plan)
        except RuntimeError:
            self.failed = True

    def sample(self, plan_id, masks):
        if not getattr(self, "failed", False):
            super().sample(plan_id, masks)

    def collect(self, plan_id):
        if getattr(self, "failed", False):
            return StepResult(plan_id=plan_id, results=[])
        return super().collect(plan_id)


class AlwaysHealthy(Two):
    def check_health(self):
        pass


class StartsTwice(Two):
    def start(self):
        self.workers = []
        return super().start()


class ShutsDownTwice(Two):
    def shutdown(self):
        for worker in self.workers:
            worker.shutdown()


class TakesAny(Two):
    max_size = 100


@pytest.mark.parametrize(
    ("executor", "test", "arguments"),
    [
        (FirstOnly, "calls_reach_every_worker_in_order", {"tp_size": 2}),
        (LargestMemory, "the_smallest_memory_is_reported", {"tp_size": 2}),
        (NoMasks, "a_result_is_that_of_its_step", {"tp_size": 1}),
        (OneAtATime, "a_step_can_be_launched_before_the_last_one_is_collected", {"tp_size": 1}),
        (WrongStep, "a_step_can_be_launched_before_the_last_one_is_collected", {"tp_size": 1}),
        (LastResult, "the_result_of_a_control_is_returned", {"tp_size": 2}),
        (Swallows, "an_error_of_a_worker_is_raised", {"verb": "execute"}),
        (AlwaysHealthy, "a_call_without_workers_is_an_error", {"verb": "check_health"}),
        (StartsTwice, "starting_twice_is_an_error", {}),
        (ShutsDownTwice, "shutting_down_reaches_each_worker_once", {"tp_size": 1}),
        (TakesAny, "more_workers_than_declared_are_refused", {"stages": False}),
    ],
)
def test_a_wrong_executor_fails(executor, test, arguments, tmp_path):
    class Wrong(ExecutorContract):
        executor_class = executor
        capabilities = ExecutorCapabilities(max_tensor_parallel_size=2)

    with pytest.raises((AssertionError, EngineDeadError, pytest.fail.Exception)):
        getattr(Wrong(), f"test_{test}")(tmp_path, **arguments)
