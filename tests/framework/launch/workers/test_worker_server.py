"""Main loop of a rank's process: messages in order, and no step after a failed one."""

import json
import threading

import pytest
from processes import WAIT_S, eventually

from quire.errors import AdapterError, CollectiveError, StepFailedError
from quire.launch.workers.worker_server import WorkerServer, serve
from quire.launch.workers.worker_wire import (
    Completed,
    Execute,
    FromWorker,
    Halt,
    Halted,
    Launch,
    Resume,
    Resumed,
    Returned,
    Run,
    Sample,
    SetKey,
    StepFailed,
    Stop,
    ToWorker,
    WorkerFailed,
)
from quire.layers.parallel import RankGroup
from quire.messages import (
    AdapterRef,
    ErrorReport,
    LoadAdapter,
    PlannedTransfers,
    RowBitmask,
    ScheduledRequest,
    SlotResult,
    StepPlan,
    TokenPatch,
)
from quire.process.local.local_channel import LocalChannel
from quire.process.local.local_hub import LocalHub
from quire.testing.executor import NotingWorker
from quire.worker.rank_worker import RankWorker

COMMAND = LoadAdapter(AdapterRef("a", "b"))
REPORT = ErrorReport("request_failed", "smoke in the model")


class NotingGroup(RankGroup):
    """A group of ranks that notes what is asked of it."""

    can_reset = True

    def __init__(self):
        self.calls = []

    def abort(self):
        self.calls.append("abort")

    def reset(self, epoch):
        self.calls.append(("reset", epoch))

    def close(self):
        self.calls.append("close")


class BrokenWorker(NotingWorker):
    """A worker of which a phase raises an error, as long as there is one."""

    def __init__(self, notes):
        super().__init__(notes)
        self.errors = {}
        self.plans = []

    def execute(self, plan):
        self._raise("execute")
        self.plans.append(plan)
        super().execute(plan)

    def sample(self, plan_id, masks):
        self._raise("sample")
        super().sample(plan_id, masks)

    def collect(self, plan_id):
        self._raise("collect")
        return super().collect(plan_id)

    def control(self, command):
        self._raise("control")
        return super().control(command)

    def _raise(self, verb):
        if verb in self.errors:
            raise self.errors[verb]


class Served:
    """A rank that has allocated its cache, served in a thread; the test is its engine."""

    def __init__(self, folder, *, has_runner=True, kind=BrokenWorker, launches=False):
        address = f"unix://{folder}/hub"
        self.calls = folder / "calls"
        self.hub, self._channel = LocalHub(FromWorker, address), LocalChannel(ToWorker, address)
        self._channel.send(SetKey("first", b""))
        self._peer, _ = self.hub.take(5)
        self.worker, self.group = kind(self.calls), NotingGroup()
        server = WorkerServer(None, 0, self._channel)
        if has_runner:
            server._worker = RankWorker(self.worker, [self.group])
            server._runner = self.worker
        self.was_stopped = None
        self._launches = launches
        self._thread = threading.Thread(target=self._serve, args=(server,))
        self._thread.start()

    def _serve(self, server):
        self.was_stopped = serve(server, self._channel)

    def send(self, *messages):
        for message in messages:
            self.hub.send([self._peer], message)

    def step(self, plan_id):
        self.launch(plan_of(plan_id))

    def launch(self, plan):
        if self._launches:
            self.send(Launch(plan, []))
        else:
            self.send(Execute(plan), Sample(plan.plan_id, []))

    def answer(self, timeout_s=WAIT_S):
        return self.hub.take(timeout_s)[1]

    def stop(self):
        self.send(Stop())
        self._thread.join(WAIT_S)
        self._channel.close()
        self.hub.close()


class DeviceWorker(BrokenWorker):
    """A worker whose device computes until the test says that a step is ready."""

    def __init__(self, notes):
        super().__init__(notes)
        self.ready = set()

    def is_ready(self, plan_id):
        return plan_id in self.ready


def plan_of(plan_id):
    return StepPlan(plan_id=plan_id, requests=[ScheduledRequest(0, 1, 1)])


@pytest.fixture(params=[False, True], ids=["in two messages", "in one message"])
def launches(request):
    return request.param


@pytest.fixture
def served(tmp_path, launches):
    made = Served(tmp_path, launches=launches)
    yield made
    made.stop()


def test_each_step_has_one_answer_in_order(served):
    served.step(1)
    served.send(
        Execute(plan_of(2)), Sample(2, [RowBitmask(0, 0, b"\x01\x00\x00\x00")]), Run(5, COMMAND)
    )
    answers = [served.answer() for _ in range(3)]
    assert answers[0].result.results == [SlotResult(0, [1])]
    assert answers[1].result.results == [SlotResult(0, [1002])]
    assert answers[2] == Returned(5, "loaded a")


@pytest.fixture
def on_device(tmp_path, launches):
    made = Served(tmp_path, kind=DeviceWorker, launches=launches)
    yield made
    made.stop()


def verbs(served):
    return [tuple(json.loads(line)[:2]) for line in served.calls.read_text().splitlines()]


def test_the_next_step_is_launched_while_the_device_computes_one(on_device):
    on_device.step(1)
    on_device.step(2)
    eventually(lambda: ("sample", 2) in verbs(on_device))
    assert on_device.hub.take(0.2) is None
    on_device.worker.ready = {1}
    assert on_device.answer().result.plan_id == 1
    assert on_device.hub.take(0.2) is None
    on_device.worker.ready = {1, 2}
    assert on_device.answer().result.plan_id == 2


def test_a_result_that_is_ready_is_sent_before_the_next_step_is_launched(served):
    for plan_id in range(20):
        served.step(plan_id)
    assert [served.answer().result.plan_id for _ in range(20)] == list(range(20))
    calls = verbs(served)
    for plan_id in range(19):
        assert calls.index(("collect", plan_id)) < calls.index(("execute", plan_id + 1))


def test_steps_that_a_device_computes_are_dropped_when_the_rank_is_halted(on_device):
    on_device.step(1)
    on_device.send(Halt())
    assert on_device.answer() == Halted(can_resume=True)
    on_device.worker.ready = {1, 2}
    on_device.send(Resume(2))
    assert isinstance(on_device.answer(), Resumed)
    on_device.step(2)
    assert on_device.answer().result.plan_id == 2


def test_a_rank_is_stopped_while_its_device_computes(on_device):
    on_device.step(1)
    on_device.send(Stop())
    on_device._thread.join(5)
    assert on_device.was_stopped is True


def test_a_command_that_cannot_be_run_is_answered_with_its_error(served):
    served.worker.errors = {"control": AdapterError("no such rank")}
    served.send(Run(5, COMMAND))
    answer = served.answer()
    assert (answer.call_id, answer.value) == (5, None)
    assert isinstance(answer.error.error(), AdapterError)
    served.step(1)
    assert isinstance(served.answer(), Completed)


@pytest.mark.parametrize("verb", ["execute", "sample", "collect"])
def test_a_failed_step_is_reported_once_and_no_other_rank_waits(served, verb):
    error = StepFailedError("it burns", report=REPORT, slots={0: REPORT})
    served.worker.errors = {verb: error}
    served.step(7)
    assert served.answer() == StepFailed(7, REPORT, {0: REPORT}, "it burns")
    served.send(Halt())
    assert served.answer() == Halted(can_resume=True)
    assert served.group.calls == ["abort"]


def test_a_rank_that_waited_in_vain_does_not_know_the_reason(served):
    served.worker.errors = {"execute": CollectiveError("rank 1 is behind")}
    served.step(7)
    assert served.answer() == StepFailed(7, None, {}, "rank 1 is behind")


def test_no_step_is_computed_between_a_failed_one_and_the_next_epoch(served):
    served.worker.errors = {"collect": StepFailedError("it burns", report=REPORT)}
    served.step(1)
    assert isinstance(served.answer(), StepFailed)
    served.worker.errors = {}
    served.step(2)
    served.send(Halt())
    assert served.answer() == Halted(can_resume=True)
    served.send(Resume(2))
    assert served.answer() == Resumed()
    served.step(3)
    assert served.answer().result.plan_id == 3
    assert served.group.calls == ["abort", ("reset", 2)]
    assert '["execute", 2]' not in served.calls.read_text()


def test_a_halted_rank_computes_nothing_although_its_steps_did_not_fail(served):
    served.send(Halt())
    served.step(1)
    assert served.answer() == Halted(can_resume=True)
    assert served.hub.take(0.2) is None
    served.send(Resume(2))
    assert served.answer() == Resumed()
    served.step(2)
    assert served.answer().result.plan_id == 2


def test_a_halted_rank_starts_the_transfers_of_a_kv_store_and_computes_nothing(served):
    """All ranks move their parts of a block, although one of them had failed before."""
    served.worker.errors = {"collect": StepFailedError("it burns", report=REPORT)}
    served.step(1)
    assert isinstance(served.answer(), StepFailed)
    stored = StepPlan(
        plan_id=2,
        requests=[ScheduledRequest(0, 1, 1)],
        token_patches=[TokenPatch(0, 0, [5])],
        kv_transfers=b"save",
        kv_loads=[4],
        kv_saves=[5],
        stop_kv_store=True,
    )
    served.launch(stored)
    served.send(Halt())
    assert served.answer() == Halted(can_resume=True)
    assert served.worker.plans[-1] == StepPlan(
        plan_id=2,
        requests=[],
        kv_transfers=b"save",
        kv_loads=[4],
        kv_saves=[5],
        stop_kv_store=True,
    )
    assert ("sample", 2) not in verbs(served)


def test_a_halted_rank_starts_the_transfers_that_are_sent_again(served):
    served.send(Halt())
    assert served.answer() == Halted(can_resume=True)
    lost = PlannedTransfers(2, b"save", [4], [5])
    stored = StepPlan(plan_id=3, requests=[], kv_resent=[lost], kv_applied=1)
    served.send(Execute(stored), Sample(3, []), Halt())
    assert served.answer() == Halted(can_resume=True)
    assert served.worker.plans[-1] == stored


def test_an_unexpected_error_is_sent_and_ends_the_rank(served):
    served.worker.errors = {"sample": ZeroDivisionError("by zero")}
    served.step(1)
    answer = served.answer()
    assert isinstance(answer, WorkerFailed)
    assert "ZeroDivisionError: by zero" in str(answer.error.error())
    served._thread.join(5)
    assert served.was_stopped is False
    assert served.calls.read_text().splitlines()[-1] == '["shutdown"]'
    assert served.group.calls == ["close"]


def test_a_rank_that_is_stopped_has_released_everything(served):
    served.send(Stop())
    served._thread.join(5)
    assert served.was_stopped is True
    assert served.hub.take() is None
    assert served.calls.read_text().splitlines()[-1] == '["shutdown"]'
    assert served.group.calls == ["close"]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Execute(plan_of(1)), "a step before the KV cache was allocated"),
        (Halt(), "before the weights were loaded"),
    ],
)
def test_a_message_before_its_time_ends_the_rank(tmp_path, message, text):
    served = Served(tmp_path, has_runner=False)
    served.send(message)
    assert text in str(served.answer().error.error())
    served.stop()
