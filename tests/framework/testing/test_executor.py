"""The kit of executors notices an executor that is wrong."""

import pytest

from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import Executor, ExecutorCapabilities, StepRunner, Worker, WorkerGrid
from quire.messages import StepResult
from quire.testing.executor import ExecutorContract

GRID = WorkerGrid(tp_size=2)


class Two(Executor):
    """Up to two processes."""

    max_size = 2

    def place(self, launch):
        if launch.grid.size > self.max_size or launch.grid.pp_size > 1:
            raise RefusedError(f"{launch.grid.size} workers")
        started = []
        try:
            for rank in range(launch.grid.size):
                started.append(launch.spawn(rank))
        except BaseException:
            for process in started:
                process.end(0.0)
            raise
        return started


class TestTwo(ExecutorContract):
    """A right executor passes."""

    executor_class = Two
    capabilities = ExecutorCapabilities(max_tensor_parallel_size=2)


class Wrapped(Worker, StepRunner):
    """Passes every call on to the worker."""

    def __init__(self, worker):
        self.worker = worker

    def load(self):
        return self.worker.load()

    def allocate(self, plans):
        self.worker.allocate(plans)
        return self

    def execute(self, plan):
        self.worker.execute(plan)

    def sample(self, plan_id, masks):
        self.worker.sample(plan_id, masks)

    def collect(self, plan_id):
        return self.worker.collect(plan_id)

    def control(self, command):
        return self.worker.control(command)

    def check_health(self):
        self.worker.check_health()

    def shutdown(self):
        self.worker.shutdown()


class Here(Executor):
    """One worker in this process."""

    wrapper = Wrapped

    def place(self, launch):
        if launch.grid.size != 1:
            raise RefusedError(f"{launch.grid.size} workers")
        return self.wrapper(launch.make())


class TestHere(ExecutorContract):
    """A right wrapper passes."""

    executor_class = Here


class OneTooFew(Two):
    def place(self, launch):
        placed = super().place(launch)
        if len(placed) > 1:
            placed.pop().end(0.0)
        return placed


class TheSameTwice(Two):
    def place(self, launch):
        return [launch.spawn(0)] * launch.grid.size


class OneIsAll(Here):
    def place(self, launch):
        return self.wrapper(launch.make())


class KillsAll(Two):
    def place(self, launch):
        placed = super().place(launch)
        for process in placed[1:]:
            process.kill = lambda: [each.process.kill() for each in placed]
        return placed


class HidesTheEnd(Two):
    def place(self, launch):
        placed = super().place(launch)
        for process in placed:
            process.kill = lambda: None
        return placed


class LeavesTheOthers(Two):
    def place(self, launch):
        return [launch.spawn(rank) for rank in range(launch.grid.size)]


class TakesAny(Two):
    max_size = 100


@pytest.mark.parametrize(
    ("wrong", "test", "arguments"),
    [
        (OneTooFew, "every_rank_is_placed", {"grid": GRID}),
        (TheSameTwice, "every_rank_is_placed", {"grid": GRID}),
        (OneIsAll, "every_rank_is_placed", {"grid": GRID}),
        (KillsAll, "the_end_of_a_process_is_seen_and_concerns_no_other", {"grid": GRID}),
        (HidesTheEnd, "the_end_of_a_process_is_seen_and_concerns_no_other", {"grid": GRID}),
        (LeavesTheOthers, "if_a_process_cannot_be_started_the_others_are_ended", {}),
        (TakesAny, "more_workers_than_declared_are_refused", {}),
    ],
)
def test_a_wrong_placement_fails(wrong, test, arguments, tmp_path, monkeypatch):
    monkeypatch.setattr("quire.testing.executor.WAIT_S", 1.0)

    class Wrong(ExecutorContract):
        executor_class = wrong
        capabilities = ExecutorCapabilities(max_tensor_parallel_size=2)

    with pytest.raises((AssertionError, RuntimeError, pytest.fail.Exception)):
        getattr(Wrong(), f"test_{test}")(tmp_path, **arguments)


class AllocatesNothing(Wrapped):
    def allocate(self, plans):
        return self


class NoMasks(Wrapped):
    def sample(self, plan_id, masks):
        super().sample(plan_id, [])


class OneAtATime(Wrapped):
    is_busy = False

    def execute(self, plan):
        if self.is_busy:
            raise EngineDeadError("one step at a time")
        self.is_busy = True
        super().execute(plan)


class NewestFirst(Wrapped):
    def collect(self, plan_id):
        return super().collect(3 - plan_id)


class NoResult(Wrapped):
    def control(self, command):
        super().control(command)


class Swallows(Wrapped):
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


@pytest.mark.parametrize(
    ("wrong", "test", "arguments"),
    [
        (AllocatesNothing, "a_worker_in_this_process_gets_every_call_in_order", {}),
        (NoMasks, "a_worker_in_this_process_gets_every_call_in_order", {}),
        (NoResult, "a_worker_in_this_process_gets_every_call_in_order", {}),
        (OneAtATime, "a_step_can_be_launched_before_the_last_one_is_collected", {}),
        (NewestFirst, "a_step_can_be_launched_before_the_last_one_is_collected", {}),
        (Swallows, "an_error_of_a_worker_in_this_process_is_raised", {"verb": "execute"}),
    ],
)
def test_a_wrong_wrapper_fails(wrong, test, arguments, tmp_path):
    class Wrapping(Here):
        wrapper = wrong

    class Wrong(ExecutorContract):
        executor_class = Wrapping

    with pytest.raises((AssertionError, EngineDeadError, pytest.fail.Exception)):
        getattr(Wrong(), f"test_{test}")(tmp_path, **arguments)
