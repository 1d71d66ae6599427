"""Conformance kit of executors: order of the calls, results and errors of workers.

    from quire.testing.executor import ExecutorContract

    class TestAcme(ExecutorContract):
        executor_class = AcmeExecutor
        capabilities = ACME_CAPABILITIES

pytest collects the inherited tests. The workers have no model: each writes its calls to a file, so
that it may run in another thread or process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import (
    Executor,
    ExecutorCapabilities,
    StepRunner,
    Worker,
    WorkerGrid,
    WorkerLaunch,
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
COMMAND = LoadAdapter(AdapterRef("an adapter", "a/folder"))
MASKS = (RowBitmask(0, 0, b"\x03\x00\x00\x00"), RowBitmask(2, 0, b"\xff\x00\x00\x00"))


class WorkerFaultError(RuntimeError):
    """Error of a worker of the kit."""


class NotingWorker(Worker, StepRunner):
    """A worker without a model, which runs its own steps. Its tokens are the ids of its plans.

    Args:
        rank: Index of the worker; rank r has `100 - r` bytes left for the KV cache.
        notes: Folder where it notes each call, one file a rank.
        fault: Verb that raises `WorkerFaultError`; None: none does.
    """

    def __init__(self, rank: int, notes: Path, fault: str | None = None) -> None:
        self.rank = rank
        self._notes = notes / f"rank{rank}"
        self._fault = fault
        self._slots: dict[int, list[int]] = {}
        self._masks: dict[int, list[int]] = {}
        self._note("built")

    def load(self) -> WorkerInfo:
        """Return the info of a worker with loaded weights."""
        self._note("load")
        return WorkerInfo(available_kv_bytes=100 - self.rank)

    def allocate(self, plan: KVPlan) -> StepRunner:
        """Note the number of blocks."""
        self._note("allocate", plan.num_blocks)
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
        """Return the name of the command's adapter and the rank."""
        self._note("control", command.adapter.name)
        return f"{command.adapter.name} of rank {self.rank}"

    def shutdown(self) -> None:
        """Note the call."""
        self._note("shutdown")

    def _note(self, verb: str, *details: Any) -> None:
        with self._notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps([verb, *details]) + "\n")
        if verb == self._fault:
            raise WorkerFaultError(f"{verb} fails on rank {self.rank}")


class ExecutorContract:
    """Tests that an executor must pass.

    Attributes:
        executor_class: Executor under test.
        capabilities: Capabilities that it declares at registration.
        max_pipeline_parallel_size: Largest number of pipeline stages that it can start.
    """

    executor_class: ClassVar[type[Executor]]
    capabilities: ClassVar[ExecutorCapabilities] = ExecutorCapabilities()
    max_pipeline_parallel_size: ClassVar[int] = 1

    def launch(
        self, notes: Path, *, tp_size: int = 1, pp_size: int = 1, fault: str | None = None
    ) -> WorkerLaunch:
        """Return the launch of the workers of a test; override it for worker processes."""
        return WorkerLaunch(
            lambda rank: NotingWorker(rank, notes, fault), grid=WorkerGrid(tp_size, pp_size)
        )

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests that take `tp_size` with 1 and with the declared maximum."""
        if "tp_size" in metafunc.fixturenames:
            metafunc.parametrize(
                "tp_size", sorted({1, self.capabilities.max_tensor_parallel_size or 2})
            )

    def test_calls_reach_every_worker_in_order(self, tmp_path: Path, tp_size: int) -> None:
        """Each worker is built once, loaded once, and sees each call once, in order."""
        with self._ready(tmp_path, tp_size=tp_size) as runner:
            runner.execute(_step_plan(1, slots=(0, 2)))
            runner.sample(1, MASKS)
            runner.collect(1)
            runner.control(COMMAND)
        expected: list[list[Any]] = [
            ["built"],
            ["load"],
            ["allocate", NUM_BLOCKS],
            ["execute", 1],
            ["sample", 1, 0, 2],
            ["collect", 1],
            ["control", "an adapter"],
            ["shutdown"],
        ]
        for rank in range(tp_size):
            found = [
                call for call in _notes(tmp_path, rank) if tp_size == 1 or call[0] != "collect"
            ]
            called = [call for call in expected if tp_size == 1 or call[0] != "collect"]
            assert found == called, f"rank {rank} got the calls {found}; expected {called}"

    def test_the_smallest_memory_is_reported(self, tmp_path: Path, tp_size: int) -> None:
        """All workers allocate the same plan, so the smallest memory is reported."""
        executor = self._executor(tmp_path, tp_size=tp_size)
        try:
            info = executor.start().load()
        finally:
            executor.shutdown()
        smallest = 100 - (tp_size - 1)
        assert info.available_kv_bytes == smallest, (
            f"load() reports {info.available_kv_bytes} bytes for the KV cache; expected "
            f"{smallest}, the smallest of all workers"
        )

    def test_a_result_is_that_of_its_step(self, tmp_path: Path, tp_size: int) -> None:
        """Tokens, slots and masks of a step are passed unchanged."""
        with self._ready(tmp_path, tp_size=tp_size) as runner:
            runner.execute(_step_plan(7, slots=(0, 1, 2)))
            runner.sample(7, MASKS)
            result = runner.collect(7)
        found = {row.slot: row.token_ids for row in result.results}
        assert (result.plan_id, found) == (7, {0: [1007], 1: [7], 2: [1007]}), (
            f"the result of plan 7 is {result}"
        )

    def test_a_step_can_be_launched_before_the_last_one_is_collected(
        self, tmp_path: Path, tp_size: int
    ) -> None:
        """Async scheduling has two steps in flight; they are collected in the order of launch."""
        with self._ready(tmp_path, tp_size=tp_size) as runner:
            for plan_id in (1, 2):
                runner.execute(_step_plan(plan_id))
                runner.sample(plan_id, [])
            ids = [runner.collect(plan_id).plan_id for plan_id in (1, 2)]
        assert ids == [1, 2], f"plans 1 and 2 were collected; the results are of plans {ids}"

    def test_the_result_of_a_control_is_returned(self, tmp_path: Path, tp_size: int) -> None:
        """`control` returns the result of rank 0."""
        with self._ready(tmp_path, tp_size=tp_size) as runner:
            result = runner.control(COMMAND)
        assert result == "an adapter of rank 0", f"control() returned {result!r}"

    @pytest.mark.parametrize(
        "verb", ["load", "allocate", "execute", "sample", "collect", "control"]
    )
    def test_an_error_of_a_worker_is_raised(self, tmp_path: Path, verb: str) -> None:
        """The error is raised with the worker's message, at the latest by `collect`."""
        executor = self._executor(tmp_path, fault=verb)
        try:
            with pytest.raises(Exception, match=f"{verb} fails on rank 0"):
                _use_every_verb(executor)
        finally:
            executor.shutdown()

    def test_without_workers_nothing_is_healthy(self, tmp_path: Path) -> None:
        """Before the start and after the shutdown, `check_health` raises an `EngineDeadError`."""
        executor = self._executor(tmp_path)
        with pytest.raises(EngineDeadError):
            executor.check_health()
        executor.start()
        executor.shutdown()
        with pytest.raises(EngineDeadError):
            executor.check_health()

    def test_running_workers_are_healthy(self, tmp_path: Path, tp_size: int) -> None:
        """`check_health` passes while the workers run; an idle engine calls it twice a second."""
        with self._started(tmp_path, tp_size=tp_size) as executor:
            executor.check_health()
            executor.check_health()

    def test_starting_twice_is_an_error(self, tmp_path: Path) -> None:
        """A second `start` raises an `EngineDeadError`: it would leak the first workers."""
        with self._started(tmp_path) as executor, pytest.raises(EngineDeadError):
            executor.start()

    def test_shutting_down_reaches_each_worker_once(self, tmp_path: Path, tp_size: int) -> None:
        """`shutdown` may be called twice, and before the start."""
        self._executor(tmp_path).shutdown()
        with self._started(tmp_path, tp_size=tp_size) as executor:
            executor.shutdown()
        for rank in range(tp_size):
            count = _notes(tmp_path, rank).count(["shutdown"])
            assert count == 1, f"rank {rank} was shut down {count} times"

    @pytest.mark.parametrize("stages", [False, True], ids=["tensor parallel", "pipeline parallel"])
    def test_more_workers_than_declared_are_refused(self, tmp_path: Path, stages: bool) -> None:
        """The constructor raises a `RefusedError`, before anything is loaded."""
        if stages:
            launch = self.launch(tmp_path, pp_size=self.max_pipeline_parallel_size + 1)
        else:
            largest = self.capabilities.max_tensor_parallel_size
            if largest is None:
                pytest.skip("the executor places any number of devices")
            launch = self.launch(tmp_path, tp_size=largest + 1)
        with pytest.raises(RefusedError):
            self.executor_class(launch)
        assert not list(tmp_path.iterdir()), "workers were built before the executor refused"

    def _executor(self, notes: Path, *, tp_size: int = 1, fault: str | None = None) -> Executor:
        return self.executor_class(self.launch(notes, tp_size=tp_size, fault=fault))

    @contextmanager
    def _ready(self, notes: Path, *, tp_size: int = 1) -> Iterator[StepRunner]:
        executor = self._executor(notes, tp_size=tp_size)
        try:
            yield _runner_of(executor.start())
        finally:
            executor.shutdown()

    @contextmanager
    def _started(self, notes: Path, *, tp_size: int = 1) -> Iterator[Executor]:
        executor = self._executor(notes, tp_size=tp_size)
        try:
            executor.start()
            yield executor
        finally:
            executor.shutdown()


def _notes(folder: Path, rank: int) -> list[list[Any]]:
    """Return the calls that a worker has noted."""
    return [json.loads(line) for line in (folder / f"rank{rank}").read_text("utf-8").splitlines()]


def _runner_of(worker: Worker) -> StepRunner:
    worker.load()
    return worker.allocate(_kv_plan())


def _use_every_verb(executor: Executor) -> None:
    runner = _runner_of(executor.start())
    runner.control(COMMAND)
    runner.execute(_step_plan(1))
    runner.sample(1, [])
    runner.collect(1)


def _kv_plan() -> KVPlan:
    return KVPlan(num_blocks=NUM_BLOCKS, groups=())


def _step_plan(plan_id: int, slots: Sequence[int] = (0,)) -> StepPlan:
    return StepPlan(plan_id=plan_id, requests=[ScheduledRequest(slot, 1, 1) for slot in slots])
