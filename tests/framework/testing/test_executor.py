"""The kit of executors notices an executor that is wrong."""

from collections import deque

import pytest

from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import Executor, ExecutorCapabilities, StepRunner, Worker
from quire.messages import StepResult
from quire.testing.executor import ExecutorContract


class Group(Worker, StepRunner):
    """Workers as one."""

    def __init__(self, workers):
        self.workers = workers

    def each(self, verb, *arguments):
        return [getattr(worker, verb)(*arguments) for worker in self.workers]

    def load(self):
        return min(self.each("load"), key=lambda info: info.available_kv_bytes)

    def allocate(self, plan):
        self.each("allocate", plan)
        return self

    def execute(self, plan):
        self.each("execute", plan)

    def sample(self, plan_id, masks):
        self.each("sample", plan_id, masks)

    def collect(self, plan_id):
        return self.each("collect", plan_id)[0]

    def control(self, command):
        return self.each("control", command)[0]

    def shutdown(self):
        self.each("shutdown")


class Two(Executor):
    """Up to two workers in this process."""

    max_size = 2
    group_class = Group

    def __init__(self, launch):
        super().__init__(launch)
        size = launch.grid.tp_size * launch.grid.pp_size
        if launch.grid.pp_size > 1 or size > self.max_size:
            raise RefusedError(f"{size} workers")
        self.size, self.group = size, None

    def start(self):
        if self.group is not None:
            raise EngineDeadError("running")
        self.group = self.group_class([self.launch.make(rank) for rank in range(self.size)])
        return self.group

    def check_health(self):
        if self.group is None:
            raise EngineDeadError("not running")

    def shutdown(self):
        group, self.group = self.group, None
        if group is not None:
            group.shutdown()


class TestTwo(ExecutorContract):
    """A right executor passes."""

    executor_class = Two
    capabilities = ExecutorCapabilities(max_tensor_parallel_size=2)


class FirstOnly(Group):
    def allocate(self, plan):
        self.workers[0].allocate(plan)
        return self


class LargestMemory(Group):
    def load(self):
        return max(self.each("load"), key=lambda info: info.available_kv_bytes)


class NoMasks(Group):
    def sample(self, plan_id, masks):
        super().sample(plan_id, [])


class OneAtATime(Group):
    is_busy = False

    def execute(self, plan):
        if self.is_busy:
            raise EngineDeadError("one step at a time")
        self.is_busy = True
        super().execute(plan)


class WrongStep(Group):
    def execute(self, plan):
        self.__dict__.setdefault("plans", deque()).append(plan.plan_id)
        super().execute(plan)

    def collect(self, plan_id):
        return super().collect(self.plans.pop())


class LastResult(Group):
    def control(self, command):
        return self.each("control", command)[-1]


class Swallows(Group):
    has_failed = False

    def execute(self, plan):
        try:
            super().execute(plan)
        except RuntimeError:
            self.has_failed = True

    def sample(self, plan_id, masks):
        if not self.has_failed:
            super().sample(plan_id, masks)

    def collect(self, plan_id):
        if self.has_failed:
            return StepResult(plan_id=plan_id, results=[])
        return super().collect(plan_id)


class AlwaysHealthy(Two):
    def check_health(self):
        pass


class StartsTwice(Two):
    def start(self):
        self.group = None
        return super().start()


class ShutsDownTwice(Two):
    def shutdown(self):
        if self.group is not None:
            self.group.shutdown()


class TakesAny(Two):
    max_size = 100


@pytest.mark.parametrize(
    ("wrong", "test", "arguments"),
    [
        (FirstOnly, "calls_reach_every_worker_in_order", {"tp_size": 2}),
        (LargestMemory, "the_smallest_memory_is_reported", {"tp_size": 2}),
        (NoMasks, "a_result_is_that_of_its_step", {"tp_size": 1}),
        (OneAtATime, "a_step_can_be_launched_before_the_last_one_is_collected", {"tp_size": 1}),
        (WrongStep, "a_step_can_be_launched_before_the_last_one_is_collected", {"tp_size": 1}),
        (LastResult, "the_result_of_a_control_is_returned", {"tp_size": 2}),
        (Swallows, "an_error_of_a_worker_is_raised", {"verb": "execute"}),
        (AlwaysHealthy, "without_workers_nothing_is_healthy", {}),
        (StartsTwice, "starting_twice_is_an_error", {}),
        (ShutsDownTwice, "shutting_down_reaches_each_worker_once", {"tp_size": 1}),
        (TakesAny, "more_workers_than_declared_are_refused", {"stages": False}),
    ],
)
def test_a_wrong_executor_fails(wrong, test, arguments, tmp_path):
    class WithGroup(Two):
        group_class = wrong

    class Wrong(ExecutorContract):
        executor_class = wrong if issubclass(wrong, Two) else WithGroup
        capabilities = ExecutorCapabilities(max_tensor_parallel_size=2)

    with pytest.raises((AssertionError, EngineDeadError, pytest.fail.Exception)):
        getattr(Wrong(), f"test_{test}")(tmp_path, **arguments)
