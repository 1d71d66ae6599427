"""Steps of several ranks: every rank gets every call, and all must answer in time and alike."""

import pytest
from scripted_rank import ScriptedRanks

from quire.errors import AdapterError, EngineDeadError
from quire.interfaces.executor import WorkerGrid
from quire.launch.workers.set_runner import SetRunner
from quire.launch.workers.worker_wire import Completed, Execute, Joined, Returned, Run, Sample
from quire.messages import (
    AdapterRef,
    LoadAdapter,
    RowBitmask,
    ScheduledRequest,
    SlotResult,
    StepPlan,
    StepResult,
)
from quire.process.error_message import ErrorMessage

COMMAND = LoadAdapter(AdapterRef("a", "b"))
MASKS = [RowBitmask(0, 0, b"\x01\x00\x00\x00")]


@pytest.fixture
def ranks(tmp_path):
    made = ScriptedRanks(f"ipc://{tmp_path}/hub", WorkerGrid(tp_size=2))
    yield made
    made.stop()


def completes(channel, message):
    if isinstance(message, Sample):
        rows = [SlotResult(0, [message.plan_id])]
        channel.send(Completed(StepResult(plan_id=message.plan_id, results=rows)))
    elif isinstance(message, Run):
        channel.send(Returned("loaded"))


def differs(channel, message):
    if isinstance(message, Sample):
        step = StepResult(plan_id=message.plan_id, results=[], digest=9)
        channel.send(Completed(step))


def runner_of(ranks, *scripts, timeout_s=5.0):
    ranks.run(*scripts)
    ranks.links.gather(Joined, 5)
    return SetRunner(ranks.links, ranks.grid, timeout_s)


def plan_of(plan_id):
    return StepPlan(plan_id=plan_id, requests=[ScheduledRequest(0, 1, 1)])


def test_every_rank_gets_every_call(ranks):
    runner = runner_of(ranks, completes)
    runner.execute(plan_of(1))
    runner.sample(1, MASKS)
    assert runner.collect(1).results == [SlotResult(0, [1])]
    assert ranks.received == [[Execute(plan_of(1)), Sample(1, MASKS)]] * 2


def test_steps_in_flight_are_collected_in_order(ranks):
    runner = runner_of(ranks, completes)
    for plan_id in (1, 2, 3):
        runner.execute(plan_of(plan_id))
        runner.sample(plan_id, [])
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
        channel.send(Returned(None, ErrorMessage.of(AdapterError("no such rank"))))

    runner = runner_of(ranks, fails)
    with pytest.raises(AdapterError, match="no such rank"):
        runner.control(COMMAND)
    ranks.links.check()


def test_a_command_that_only_some_ranks_can_run_ends_the_engine(ranks):
    def fails(channel, message):
        channel.send(Returned(None, ErrorMessage.of(AdapterError("no memory"))))

    runner = runner_of(ranks, completes, fails)
    with pytest.raises(EngineDeadError, match=r"worker 1 .* failed where others did not: no mem"):
        runner.control(COMMAND)


def test_a_rank_that_does_not_complete_a_step_is_named(ranks):
    runner = runner_of(ranks, completes, lambda channel, message: None, timeout_s=0.3)
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
