"""Conformance kit of executors: placement of workers, and the end of their processes.

    from quire.testing.executor import ExecutorContract

    class TestAcme(ExecutorContract):
        executor_class = AcmeExecutor
        capabilities = ACME_CAPABILITIES

pytest collects the inherited tests. The workers have no model: one in the test's process writes its
calls to a file, and a worker process sleeps until it is ended.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from quire.errors import RefusedError
from quire.interfaces.executor import (
    Executor,
    ExecutorCapabilities,
    HelperProcess,
    JoinPoint,
    StepRunner,
    Worker,
    WorkerGrid,
    WorkerLaunch,
    WorkerProcess,
)
from quire.interfaces.kv_cache import KVPlan
from quire.messages import (
    AdapterRef,
    LoadAdapter,
    RowBitmask,
    ScheduledRequest,
    SlotResult,
    StepPlan,
    StepResult,
    WorkerControl,
    WorkerInfo,
)

NUM_BLOCKS = 9
KV_BYTES = 100
COMMAND = LoadAdapter(AdapterRef("an adapter", "a/folder"))
MASKS = (RowBitmask(0, 0, b"\x03\x00\x00\x00"), RowBitmask(2, 0, b"\xff\x00\x00\x00"))
GRIDS = (WorkerGrid(), WorkerGrid(tp_size=2), WorkerGrid(pp_size=2), WorkerGrid(2, 2))
SLEEP_S = 120  # of a worker process that nothing ends
WAIT_S = 20.0
SETTLE_S = 0.3


class WorkerFaultError(RuntimeError):
    """Error of a worker of the kit."""


class NotingWorker(Worker, StepRunner):
    """A worker without a model, which runs its own steps. Its tokens are the ids of its plans.

    Args:
        notes: File where it notes each call.
        fault: Verb that raises `WorkerFaultError`; None: none does.
    """

    def __init__(self, notes: Path, fault: str | None = None) -> None:
        self._notes = notes
        self._fault = fault
        self._slots: dict[int, list[int]] = {}
        self._masks: dict[int, list[int]] = {}
        self._note("built")

    def load(self) -> WorkerInfo:
        """Return the info of a worker with loaded weights."""
        self._note("load")
        return WorkerInfo(kv_bytes=[KV_BYTES])

    def allocate(self, plans: Sequence[KVPlan]) -> StepRunner:
        """Note the number of blocks."""
        self._note("allocate", *[plan.num_blocks for plan in plans])
        return self

    def execute(self, plan: StepPlan) -> None:
        """Record the slots of the plan."""
        self._note("execute", plan.plan_id)
        self._slots[plan.plan_id] = [request.slot for request in plan.requests]

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Record the slots of the masks."""
        self._note("sample", plan_id, *[mask.slot for mask in masks])
        self._masks[plan_id] = [mask.slot for mask in masks]

    def collect(self, plan_id: int) -> StepResult:
        """Return a token for each slot: the plan's id, and 1000 more under a mask."""
        self._note("collect", plan_id)
        masked = self._masks.pop(plan_id)
        slots = self._slots.pop(plan_id)
        rows = [SlotResult(slot, [plan_id + 1000 * (slot in masked)]) for slot in slots]
        return StepResult(plan_id=plan_id, results=rows)

    def control(self, command: WorkerControl) -> Any:
        """Return the name of the command's adapter."""
        self._note("control", command.adapter.name)
        return f"loaded {command.adapter.name}"

    def check_health(self) -> None:
        """Note the call."""
        self._note("check_health")

    def shutdown(self) -> None:
        """Note the call."""
        self._note("shutdown")

    def _note(self, verb: str, *details: Any) -> None:
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps([verb, *details]) + "\n")
        if verb == self._fault:
            raise WorkerFaultError(f"{verb} fails")


class SleepingProcess(WorkerProcess):
    """A process of a rank that does nothing until it is ended."""

    node = "the test's machine"

    def __init__(self) -> None:
        code = f"import time; time.sleep({SLEEP_S})"
        self.process = subprocess.Popen([sys.executable, "-c", code])
        self._death_fd: int | None = os.pidfd_open(self.process.pid)
        self._description: str | None = None

    def fileno(self) -> int | None:
        """Return the pidfd; None once the process was ended."""
        return self._death_fd

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()

    def end(self, timeout_s: float) -> str:
        """Wait for the process to exit, then kill it."""
        if self._description is None:
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(WAIT_S)
            self._description = f"ended with exit code {self.process.returncode}"
            if self._death_fd is not None:
                os.close(self._death_fd)
            self._death_fd = None
        return self._description


class SleepingJoinPoint(JoinPoint):
    """A port at which sleeping processes join at once.

    Args:
        grid: Grid of the ranks.
        spawn: Function that starts the process of a rank.
    """

    address = "127.0.0.1:9"
    key = "0" * 64
    has_key_file = True

    def __init__(self, grid: WorkerGrid, spawn: Callable[[int], WorkerProcess]) -> None:
        self._grid = grid
        self._spawn = spawn

    def wait(self, check: Callable[[], None]) -> Sequence[WorkerProcess]:
        """Start a process for each rank; if one cannot be started, the others are ended."""
        started: list[WorkerProcess] = []
        try:
            for rank in range(self._grid.size):
                check()
                started.append(self._spawn(rank))
        except BaseException:
            for process in started:
                process.end(0.0)
            raise
        return started


class ExecutorContract:
    """Tests that an executor must pass.

    Attributes:
        executor_class: Executor under test.
        capabilities: Capabilities that it declares at registration.
    """

    executor_class: ClassVar[type[Executor]]
    capabilities: ClassVar[ExecutorCapabilities] = ExecutorCapabilities()

    def launch(
        self, notes: Path, grid: WorkerGrid, spawn: Callable[[int], WorkerProcess] | None = None
    ) -> WorkerLaunch:
        """Return the launch of the workers of a test; override it for other worker processes."""
        start = spawn or (lambda _: SleepingProcess())
        return WorkerLaunch(
            grid=grid,
            make=lambda: NotingWorker(notes / "calls"),
            spawn=start,
            listen=lambda _: SleepingJoinPoint(grid, start),
            start_helper=_no_helper,
        )

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests that take a `grid` with those within the declared capabilities."""
        if "grid" in metafunc.fixturenames:
            grids = [grid for grid in GRIDS if _allows(self.capabilities, grid)]
            metafunc.parametrize("grid", grids, ids=lambda g: f"tp{g.tp_size}-pp{g.pp_size}")

    def test_every_rank_is_placed(self, tmp_path: Path, grid: WorkerGrid) -> None:
        """A grid of one may be a worker in this process; else each rank has a process."""
        with self._placed(tmp_path, grid) as placed:
            if isinstance(placed, Worker):
                assert grid.size == 1, f"one worker in this process for a grid of {grid.size}"
                return
            assert len(placed) == grid.size, f"{len(placed)} processes for {grid.size} ranks"
            assert len({id(process) for process in placed}) == grid.size, "a rank is placed twice"
            assert all(process.node for process in placed), "a process has no name of its machine"

    def test_the_end_of_a_process_is_seen_and_concerns_no_other(
        self, tmp_path: Path, grid: WorkerGrid
    ) -> None:
        """The last rank is killed: its descriptor becomes readable, and those of others do not."""
        with self._placed(tmp_path, grid) as placed:
            if isinstance(placed, Worker):
                pytest.skip("the worker runs in this process")
            placed[-1].kill()
            placed[-1].kill()
            ended = [_has_ended(process, WAIT_S) for process in placed[-1:]]
            running = [_has_ended(process, SETTLE_S) for process in placed[:-1]]
            assert all(ended), "the killed process is not seen to have ended"
            assert not any(running), "another process ended with it"

    def test_ending_twice_describes_the_same_end(self, tmp_path: Path, grid: WorkerGrid) -> None:
        """`end` kills what does not exit in time, and may be called again."""
        with self._placed(tmp_path, grid) as placed:
            if isinstance(placed, Worker):
                pytest.skip("the worker runs in this process")
            for process in placed:
                first = process.end(0.0)
                assert first, "the end of a process has no description"
                assert process.end(0.0) == first
                process.kill()

    def test_if_a_process_cannot_be_started_the_others_are_ended(self, tmp_path: Path) -> None:
        """The error of the start is raised, and no process of an earlier rank runs on."""
        grid = WorkerGrid(tp_size=2)
        if not _allows(self.capabilities, grid):
            pytest.skip("the executor places one worker")
        started: list[SleepingProcess] = []

        def spawn(rank: int) -> WorkerProcess:
            if rank == 1:
                raise WorkerFaultError("no process for rank 1")
            started.append(SleepingProcess())
            return started[-1]

        with pytest.raises(WorkerFaultError, match="rank 1"):
            self.executor_class().place(self.launch(tmp_path, grid, spawn))
        running = [process for process in started if process.process.poll() is None]
        for process in started:
            process.end(0.0)
        assert not running, "the process of rank 0 runs on"

    def test_more_workers_than_declared_are_refused(self, tmp_path: Path) -> None:
        """`place` raises a `RefusedError`, before anything is started."""
        tp_limit = self.capabilities.max_tensor_parallel_size
        pp_limit = self.capabilities.max_pipeline_parallel_size
        if tp_limit is None and pp_limit is None:
            pytest.skip("the executor declares no limits")
        too_many = [] if tp_limit is None else [WorkerGrid(tp_size=tp_limit + 1)]
        too_long = [] if pp_limit is None else [WorkerGrid(pp_size=pp_limit + 1)]
        for grid in too_many + too_long:
            with pytest.raises(RefusedError):
                self.executor_class().place(self.launch(tmp_path, grid, _no_process))
        assert not list(tmp_path.iterdir()), "a worker was built before the executor refused"

    def test_a_worker_in_this_process_gets_every_call_in_order(self, tmp_path: Path) -> None:
        """A worker that the executor wraps gets each call once, and its results are unchanged."""
        with self._placed(tmp_path, WorkerGrid()) as worker:
            if not isinstance(worker, Worker):
                pytest.skip("the worker has a process of its own")
            assert worker.load().kv_bytes == [KV_BYTES]
            runner = worker.allocate([_kv_plan()])
            runner.execute(_step_plan(7, slots=(0, 1, 2)))
            runner.sample(7, MASKS)
            result = runner.collect(7)
            assert runner.control(COMMAND) == "loaded an adapter"
            worker.check_health()
        found = {row.slot: row.token_ids for row in result.results}
        assert (result.plan_id, found) == (7, {0: [1007], 1: [7], 2: [1007]}), (
            f"the result of plan 7 is {result}"
        )
        calls = [json.loads(line) for line in (tmp_path / "calls").read_text("utf-8").splitlines()]
        assert [call for call in calls if call != ["check_health"]] == [
            ["built"],
            ["load"],
            ["allocate", NUM_BLOCKS],
            ["execute", 7],
            ["sample", 7, 0, 2],
            ["collect", 7],
            ["control", "an adapter"],
            ["shutdown"],
        ]

    def test_a_step_can_be_launched_before_the_last_one_is_collected(self, tmp_path: Path) -> None:
        """Async scheduling has two steps in flight; they are collected in the order of launch."""
        with self._placed(tmp_path, WorkerGrid()) as worker:
            if not isinstance(worker, Worker):
                pytest.skip("the worker has a process of its own")
            worker.load()
            runner = worker.allocate([_kv_plan()])
            for plan_id in (1, 2):
                runner.launch(_step_plan(plan_id))
            ids = [runner.collect(plan_id).plan_id for plan_id in (1, 2)]
        assert ids == [1, 2], f"plans 1 and 2 were collected; the results are of plans {ids}"

    @pytest.mark.parametrize(
        "verb", ["load", "allocate", "execute", "sample", "collect", "control"]
    )
    def test_an_error_of_a_worker_in_this_process_is_raised(
        self, tmp_path: Path, verb: str
    ) -> None:
        """The error is raised with the worker's message, at the latest by `collect`."""
        launch = WorkerLaunch(
            grid=WorkerGrid(),
            make=lambda: NotingWorker(tmp_path / "calls", verb),
            spawn=_no_process,
            listen=lambda _: SleepingJoinPoint(WorkerGrid(), _no_process),
            start_helper=_no_helper,
        )
        try:
            worker = self.executor_class().place(launch)
        except WorkerFaultError:
            pytest.skip("the worker has a process of its own")
        if not isinstance(worker, Worker):
            pytest.skip("the worker has a process of its own")
        try:
            with pytest.raises(Exception, match=f"{verb} fails"):
                _use_every_verb(worker)
        finally:
            worker.shutdown()

    @contextmanager
    def _placed(self, notes: Path, grid: WorkerGrid) -> Iterator[Worker | Sequence[WorkerProcess]]:
        placed = self.executor_class().place(self.launch(notes, grid))
        try:
            yield placed
        finally:
            if isinstance(placed, Worker):
                placed.shutdown()
            else:
                for process in placed:
                    process.kill()
                    process.end(0.0)


def _allows(capabilities: ExecutorCapabilities, grid: WorkerGrid) -> bool:
    limits = (
        (capabilities.max_tensor_parallel_size, grid.tp_size),
        (capabilities.max_pipeline_parallel_size, grid.pp_size),
    )
    return all(limit is None or size <= limit for limit, size in limits)


def _has_ended(process: WorkerProcess, timeout_s: float) -> bool:
    """Whether the descriptor of a process is readable; one without a descriptor counts as ended."""
    fd = process.fileno()
    if fd is None:
        return timeout_s == WAIT_S
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(timeout_s * 1000))


def _no_process(rank: int) -> WorkerProcess:
    raise WorkerFaultError(f"no process for rank {rank}")


def _no_helper(module: str) -> HelperProcess:
    raise WorkerFaultError(f"no process for {module}")


def _use_every_verb(worker: Worker) -> None:
    worker.load()
    runner = worker.allocate([_kv_plan()])
    runner.control(COMMAND)
    runner.execute(_step_plan(1))
    runner.sample(1, [])
    runner.collect(1)


def _kv_plan() -> KVPlan:
    return KVPlan(num_blocks=NUM_BLOCKS, groups=())


def _step_plan(plan_id: int, slots: Sequence[int] = (0,)) -> StepPlan:
    return StepPlan(plan_id=plan_id, requests=[ScheduledRequest(slot, 1, 1) for slot in slots])
