"""Steps of several ranks: every rank gets every call, and all must answer in time and alike."""

import os
import signal
import threading

import pytest
from processes import WAIT_S
from scripted_rank import ScriptedRanks

from quire.errors import AdapterError, EngineDeadError, StepFailedError
from quire.interfaces.executor import WorkerGrid
from quire.launch.workers.ranks.set_runner import SetRunner
from quire.launch.workers.worker_wire import (
    Completed,
    Execute,
    Halt,
    Halted,
    Joined,
    Launch,
    Resume,
    Resumed,
    Returned,
    Run,
    Sample,
    StepFailed,
)
from quire.messages import (
    AdapterRef,
    ErrorReport,
    LoadAdapter,
    RowBitmask,
    ScheduledRequest,
    SlotResult,
    StepPlan,
    StepResult,
    TransferReport,
)
from quire.process.error_message import ErrorMessage

COMMAND = LoadAdapter(AdapterRef("a", "b"))
MASKS = [RowBitmask(0, 0, b"\x01\x00\x00\x00")]


@pytest.fixture
def ranks(tmp_path):
    made = ScriptedRanks(f"unix://{tmp_path}/hub", WorkerGrid(tp_size=2))
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def default_handler():
    """Ctrl-C raises also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def completes(channel, message):
    if isinstance(message, Sample | Launch):
        plan_id = message.plan_id if isinstance(message, Sample) else message.plan.plan_id
        rows = [SlotResult(0, [plan_id])]
        channel.send(Completed(StepResult(plan_id=plan_id, results=rows)))
    elif isinstance(message, Run):
        channel.send(Returned(message.call_id, "loaded"))


def differs(channel, message):
    if isinstance(message, Sample):
        step = StepResult(plan_id=message.plan_id, results=[], digest=9)
        channel.send(Completed(step))


def runner_of(ranks, *scripts, timeout_s=WAIT_S):
    ranks.run(*scripts)
    ranks.links.gather(Joined, WAIT_S)
    return SetRunner(ranks.links, ranks.grid, timeout_s)


def plan_of(plan_id):
    return StepPlan(plan_id=plan_id, requests=[ScheduledRequest(0, 1, 1)])


def test_every_rank_gets_every_call(ranks):
    runner = runner_of(ranks, completes)
    runner.execute(plan_of(1))
    runner.sample(1, MASKS)
    assert runner.collect(1).results == [SlotResult(0, [1])]
    assert ranks.received == [[Execute(plan_of(1)), Sample(1, MASKS)]] * 2


def test_a_step_is_launched_with_one_message(ranks):
    runner = runner_of(ranks, completes)
    runner.launch(plan_of(1), MASKS)
    assert runner.collect(1).results == [SlotResult(0, [1])]
    assert ranks.received == [[Launch(plan_of(1), MASKS)]] * 2


def test_steps_in_flight_are_collected_in_order(ranks):
    runner = runner_of(ranks, completes)
    for plan_id in (1, 2, 3):
        runner.launch(plan_of(plan_id))
    found = [runner.collect(plan_id) for plan_id in (1, 2, 3)]
    assert [(each.plan_id, each.results[0].token_ids) for each in found] == [
        (1, [1]),
        (2, [2]),
        (3, [3]),
    ]


def test_a_command_between_steps_in_flight_returns_its_result(ranks):
    runner = runner_of(ranks, completes)
    runner.execute(plan_of(1))
    runner.sample(1, [])
    assert runner.control(COMMAND) == "loaded"
    assert runner.collect(1).plan_id == 1


def test_a_command_that_fails_everywhere_raises_its_error(ranks):
    def fails(channel, message):
        channel.send(Returned(message.call_id, None, ErrorMessage.of(AdapterError("no such rank"))))

    runner = runner_of(ranks, fails)
    with pytest.raises(AdapterError, match="no such rank"):
        runner.control(COMMAND)
    ranks.links.check()


def test_a_command_that_one_rank_cannot_run_raises_its_error(ranks):
    def fails(channel, message):
        channel.send(Returned(message.call_id, None, ErrorMessage.of(AdapterError("no memory"))))

    runner = runner_of(ranks, completes, fails)
    with pytest.raises(AdapterError, match="no memory"):
        runner.control(COMMAND)
    ranks.links.check()


@pytest.mark.parametrize("launches", [False, True], ids=["in two messages", "in one message"])
def test_a_rank_that_does_not_complete_a_step_is_named(ranks, launches):
    runner = runner_of(ranks, completes, lambda channel, message: None, timeout_s=0.3)
    if launches:
        runner.launch(plan_of(4))
    else:
        runner.execute(plan_of(4))
        runner.sample(4, [])
    with pytest.raises(EngineDeadError, match=r"^step 4 did not complete within 0.3 s: worker 1 "):
        runner.collect(4)


def test_ranks_that_sample_different_tokens_end_the_engine(ranks):
    runner = runner_of(ranks, completes, differs)
    runner.execute(plan_of(5))
    runner.sample(5, [])
    text = "different tokens in step 5 .digests rank 0: 0{16}, rank 1: 0{15}9"
    with pytest.raises(EngineDeadError, match=text):
        runner.collect(5)


def test_a_death_during_a_step_names_the_step(ranks):
    runner = runner_of(ranks, completes, lambda channel, message: None)
    runner.execute(plan_of(6))
    runner.sample(6, [])
    ranks.processes[1].die()
    with pytest.raises(EngineDeadError, match=r"worker 1 .* SIGKILL, during or after step 6"):
        runner.collect(6)


class Failing:
    """Rank whose steps fail until it is resumed; it answers `Halt`, as every rank does."""

    def __init__(self, report=None, slots=None, can_resume=True, plan_id=None):
        self.report, self.slots, self.can_resume = report, slots or {}, can_resume
        self.plan_id = plan_id
        self.is_halted = False
        self.epochs = []

    def __call__(self, channel, message):
        if isinstance(message, Halt):
            self.is_halted = True
            channel.send(Halted(self.can_resume))
        elif isinstance(message, Resume):
            self.is_halted = False
            self.report, self.slots, self.plan_id = None, {}, -1
            self.epochs.append(message.epoch)
            channel.send(Resumed())
        elif isinstance(message, Sample) and not self.is_halted:
            if self.plan_id in (None, message.plan_id):
                self.is_halted = True
                text = "waited in vain" if self.report is None else "smoke"
                channel.send(StepFailed(message.plan_id, self.report, self.slots, text))
            else:
                completes(channel, message)


REPORT = ErrorReport("request_failed", "smoke in the model")


def fail_step(runner, *plan_ids):
    for plan_id in plan_ids:
        runner.execute(plan_of(plan_id))
        runner.sample(plan_id, [])
    with pytest.raises(StepFailedError) as caught:
        runner.collect(plan_ids[0])
    return caught.value


def test_a_failed_step_is_that_of_the_rank_that_knows_why_and_all_go_on(ranks):
    scripts = Failing(), Failing(REPORT, {0: REPORT})
    runner = runner_of(ranks, *scripts)
    error = fail_step(runner, 7)
    assert (error.report, error.slots, error.plan_id) == (REPORT, {0: REPORT}, 7)
    assert str(error).startswith("worker 1 of 2")
    runner.execute(plan_of(8))
    runner.sample(8, [])
    assert runner.collect(8).results == [SlotResult(0, [8])]
    assert [script.epochs for script in scripts] == [[2], [2]]


def test_every_failure_has_a_later_epoch(ranks):
    scripts = Failing(REPORT), Failing()
    runner = runner_of(ranks, *scripts)
    fail_step(runner, 1)
    assert [script.epochs for script in scripts] == [[2], [2]]
    scripts[0].report, scripts[0].plan_id, scripts[1].plan_id = REPORT, None, None
    fail_step(runner, 2)
    assert [script.epochs for script in scripts] == [[2, 3], [2, 3]]


def test_a_rank_that_does_not_resume_ends_the_engine_and_is_named(ranks):
    """Its groups are reset while the others wait for it."""

    def stays(channel, message):
        if isinstance(message, Halt):
            channel.send(Halted(True))

    runner = runner_of(ranks, Failing(REPORT), stays, timeout_s=0.5)
    runner.execute(plan_of(1))
    runner.sample(1, [])
    with pytest.raises(EngineDeadError, match=r"within 0.5 s: worker 1 of 2 .* has not answered"):
        runner.collect(1)


def test_a_step_launched_after_the_failed_one_is_dropped(ranks):
    scripts = Failing(REPORT), Failing()
    runner = runner_of(ranks, *scripts)
    assert fail_step(runner, 1, 2).plan_id == 1
    runner.execute(plan_of(3))
    runner.sample(3, [])
    assert runner.collect(3).plan_id == 3


def test_a_rank_that_has_completed_the_failed_step_goes_on_with_the_others(ranks):
    scripts = Failing(REPORT), Failing(plan_id=-1)
    runner = runner_of(ranks, *scripts)
    assert fail_step(runner, 1).report == REPORT
    runner.execute(plan_of(2))
    runner.sample(2, [])
    assert runner.collect(2).plan_id == 2


def test_transfers_that_a_dropped_step_reports_are_not_lost(ranks):
    """One rank reports a transfer with a step that the other ends, and that one in the next."""

    def reports(channel, message):
        if isinstance(message, Halt):
            channel.send(Completed(stored_result(1)))
            channel.send(Halted(True))
        elif isinstance(message, Resume):
            channel.send(Resumed())
        elif isinstance(message, Sample) and message.plan_id == 2:
            completes(channel, message)

    class FailsOnce(Failing):
        def __call__(self, channel, message):
            if isinstance(message, Sample) and message.plan_id == 2:
                channel.send(Completed(stored_result(2)))
            else:
                super().__call__(channel, message)

    runner = runner_of(ranks, FailsOnce(REPORT), reports)
    fail_step(runner, 1)
    runner.execute(plan_of(2))
    runner.sample(2, [])
    assert runner.collect(2).transfers == TransferReport(done=[7])


def stored_result(plan_id):
    transfers = TransferReport(done=[7])
    return StepResult(plan_id=plan_id, results=[SlotResult(0, [plan_id])], transfers=transfers)


def test_ranks_that_all_wait_in_vain_end_the_engine(ranks):
    runner = runner_of(ranks, Failing(), Failing())
    runner.execute(plan_of(1))
    runner.sample(1, [])
    text = "cannot go on together: worker 0 .* waited in vain; worker 1 .* waited in vain"
    with pytest.raises(EngineDeadError, match=text):
        runner.collect(1)


@pytest.mark.parametrize("both_fail", [False, True])
def test_ranks_that_cannot_be_reset_go_on_only_if_all_failed_alike(ranks, both_fail):
    scripts = (
        Failing(REPORT, can_resume=False),
        Failing(REPORT if both_fail else None, can_resume=False),
    )
    runner = runner_of(ranks, *scripts)
    runner.execute(plan_of(1))
    runner.sample(1, [])
    with pytest.raises(StepFailedError if both_fail else EngineDeadError, match="smoke"):
        runner.collect(1)


def test_the_failure_of_the_earliest_step_counts_and_the_slots_of_every_rank(ranks):
    others = ErrorReport("request_failed", "fire in the adapter")
    scripts = (
        Failing(REPORT, {3: REPORT}, plan_id=2),
        Failing(others, {5: others}, plan_id=1),
    )
    error = fail_step(runner_of(ranks, *scripts), 1, 2)
    assert (error.plan_id, error.report) == (1, others)
    assert error.slots == {3: REPORT, 5: others}


def test_one_rank_that_cannot_be_reset_is_enough_to_end_the_engine(ranks):
    runner = runner_of(ranks, Failing(REPORT), Failing(can_resume=False))
    runner.execute(plan_of(1))
    runner.sample(1, [])
    with pytest.raises(EngineDeadError, match="cannot go on together"):
        runner.collect(1)


def test_the_result_of_a_command_is_that_of_rank_0_and_every_rank_runs_it(ranks):
    def runs(value):
        return lambda channel, message: channel.send(Returned(message.call_id, value))

    runner = runner_of(ranks, runs("first"), runs("second"))
    assert runner.control(COMMAND) == "first"
    assert ranks.received == [[Run(1, COMMAND)], [Run(1, COMMAND)]]


def test_the_result_of_an_interrupted_command_is_not_that_of_the_next_one(ranks):
    is_over = threading.Event()

    def interrupts(channel, message):
        if isinstance(message, Run):
            if message.call_id == 1:
                os.kill(os.getpid(), signal.SIGINT)
                is_over.wait(WAIT_S)
            channel.send(Returned(message.call_id, f"result {message.call_id}"))
        else:
            completes(channel, message)

    runner = runner_of(ranks, interrupts, completes)
    with pytest.raises(KeyboardInterrupt):
        runner.control(COMMAND)
    is_over.set()
    assert runner.control(COMMAND) == "result 2"
    runner.launch(plan_of(1))
    assert runner.collect(1).plan_id == 1


def test_a_step_after_an_interrupted_command_is_collected(ranks):
    def interrupts(channel, message):
        if isinstance(message, Run):
            os.kill(os.getpid(), signal.SIGINT)
            channel.receive(WAIT_S)  # the launch of the step; then the result is late
            channel.send(Returned(message.call_id, "late"))
            completes(channel, Launch(plan_of(1), []))

    runner = runner_of(ranks, interrupts, completes)
    with pytest.raises(KeyboardInterrupt):
        runner.control(COMMAND)
    runner.launch(plan_of(1))
    assert runner.collect(1).plan_id == 1


def test_a_result_of_no_command_ends_the_engine(ranks):
    runner = runner_of(ranks, lambda channel, message: channel.send(Returned(1, "what for?")))
    runner.launch(plan_of(1))
    with pytest.raises(EngineDeadError, match=r"sent Returned.* unexpectedly"):
        runner.collect(1)


def test_an_interrupt_waits_until_all_ranks_are_ready_again(ranks):
    """Ranks that are halted and not resumed would compute nothing any more."""

    class Interrupting(Failing):
        def __call__(self, channel, message):
            if isinstance(message, Halt):
                os.kill(os.getpid(), signal.SIGINT)
            super().__call__(channel, message)

    scripts = Interrupting(REPORT), Failing()
    runner = runner_of(ranks, *scripts)
    runner.execute(plan_of(1))
    runner.sample(1, [])
    with pytest.raises(KeyboardInterrupt):
        runner.collect(1)
    assert [script.epochs for script in scripts] == [[2], [2]]
    runner.execute(plan_of(2))
    runner.sample(2, [])
    assert runner.collect(2).plan_id == 2


def test_a_rank_that_does_not_run_a_command_is_named(ranks):
    runner = runner_of(ranks, completes, lambda channel, message: None, timeout_s=0.3)
    text = r"^the command LoadAdapter did not complete within 0.3 s: worker 1"
    with pytest.raises(EngineDeadError, match=text):
        runner.control(COMMAND)


def test_an_answer_that_belongs_to_no_step_ends_the_engine(ranks):
    runner = runner_of(ranks, completes, lambda channel, message: channel.send(Halted(True)))
    runner.execute(plan_of(1))
    with pytest.raises(EngineDeadError, match=r"worker 1 .* sent Halted.* unexpectedly"):
        runner.collect(1)


def test_a_rank_that_does_not_halt_is_named(ranks):
    def never_halts(channel, message): ...

    runner = runner_of(ranks, Failing(REPORT), never_halts, timeout_s=0.3)
    runner.execute(plan_of(9))
    runner.sample(9, [])
    text = r"^stopping after step 9, which failed, did not complete within 0.3 s: worker 1"
    with pytest.raises(EngineDeadError, match=text):
        runner.collect(9)
