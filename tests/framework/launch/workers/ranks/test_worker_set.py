"""All ranks as one worker: they agree, load and plan alike, and none is left behind."""

import pytest
from processes import WAIT_S
from scripted_rank import CHOICES, ScriptedRanks

from quire.errors import EngineDeadError, PluginError
from quire.interfaces.executor import WorkerGrid
from quire.interfaces.kv_cache import KVPlan
from quire.launch.workers.ranks.worker_set import WorkerSet
from quire.launch.workers.worker_wire import (
    Allocate,
    Allocated,
    Completed,
    Execute,
    Loaded,
    LoadWeights,
    Sample,
)
from quire.messages import (
    RankPlace,
    ScheduledRequest,
    SlotResult,
    StepPlan,
    StepResult,
    WorkerInfo,
)

PLACES = [RankPlace("a machine", "1", f"10.0.0.{rank}", rank) for rank in range(2)]
PLANS = [KVPlan(num_blocks=9, groups=(), max_model_len=64)]


class Rank:
    """A rank with so much memory, which plans so many blocks."""

    def __init__(self, kv_bytes, num_blocks=9, max_model_len=64):
        self.kv_bytes = kv_bytes
        self.allocated = Allocated(num_blocks, max_model_len)

    def __call__(self, channel, message):
        match message:
            case LoadWeights():
                channel.send(Loaded(WorkerInfo(kv_bytes=[self.kv_bytes])))
            case Allocate():
                channel.send(self.allocated)
            case Sample():
                rows = [SlotResult(0, [self.kv_bytes])]
                channel.send(Completed(StepResult(plan_id=message.plan_id, results=rows)))


@pytest.fixture
def ranks(tmp_path):
    made = ScriptedRanks(f"unix://{tmp_path}/hub", WorkerGrid(pp_size=2))
    yield made
    made.stop()


def workers_of(ranks, start_timeout_s=WAIT_S):
    return WorkerSet(
        ranks.links,
        ranks.grid,
        CHOICES,
        PLACES,
        start_timeout_s=start_timeout_s,
        step_timeout_s=WAIT_S,
    )


def joined(ranks, *scripts):
    ranks.run(*scripts)
    workers = workers_of(ranks)
    workers.join()
    return workers


def test_places_and_memory_of_every_rank_are_sent_to_all_in_order(ranks):
    workers = joined(ranks, Rank(100), Rank(70))
    info = workers.load()
    assert info.kv_bytes == [100, 70]
    workers.allocate(PLANS)
    assert ranks.received == [[LoadWeights(PLACES), Allocate([100, 70])]] * 2


def test_workers_compute_while_the_host_plans(ranks):
    assert joined(ranks, Rank(1)).load().is_asynchronous


def test_the_runner_has_the_tokens_of_the_last_stage(ranks):
    workers = joined(ranks, Rank(100), Rank(70))
    workers.load()
    runner = workers.allocate(PLANS)
    plan = StepPlan(plan_id=1, requests=[ScheduledRequest(0, 1, 1)])
    runner.execute(plan)
    runner.sample(1, [])
    assert runner.collect(1).results == [SlotResult(0, [70])]
    assert Execute(plan) in ranks.received[0]


@pytest.mark.parametrize("other", [Rank(1, num_blocks=8), Rank(1, max_model_len=63)])
def test_a_rank_that_plans_another_cache_ends_all_and_is_named(ranks, other):
    workers = joined(ranks, Rank(1), other)
    workers.load()
    with pytest.raises(EngineDeadError, match=r"worker 1 of 2 .* planned another KV cache"):
        workers.allocate(PLANS)
    assert all(process.patience_s for process in ranks.processes)


def test_all_ranks_that_chose_otherwise_are_told_at_once_and_ended(ranks):
    ranks.run(Rank(1), choices=[["quire 2", "torch 2"], ["quire 1", "torch 3"]])
    workers = workers_of(ranks)
    with pytest.raises(PluginError, match="2 of 2 workers chose other parts") as caught:
        workers.join()
    text = str(caught.value)
    assert "rank 0, process 1000 on a machine" in text
    assert "rank 1, process 1001 on a machine" in text
    for line in ("-quire 1", "+quire 2", "-torch 2", "+torch 3"):
        assert line in text.splitlines()
    assert all(process.patience_s for process in ranks.processes)
    with pytest.raises(EngineDeadError, match="chose other parts"):
        workers.load()


def test_a_rank_that_does_not_join_in_time_is_named(ranks):
    with pytest.raises(EngineDeadError, match=r"^the start did not complete .* worker 0 of 2"):
        workers_of(ranks, start_timeout_s=0.05).join()


@pytest.mark.parametrize("what", ["loading the weights", "allocating the KV cache"])
def test_a_rank_that_is_late_is_named_with_what_it_should_do(ranks, what):
    def late(channel, message):
        if isinstance(message, LoadWeights) and what != "loading the weights":
            channel.send(Loaded(WorkerInfo(kv_bytes=[1])))

    ranks.run(Rank(1), late)
    workers = workers_of(ranks)
    workers.join()
    workers._start_timeout_s = 0.3
    with pytest.raises(EngineDeadError, match=f"^{what} did not complete within 0.3 s: worker 1"):
        load_and_allocate(workers)


def load_and_allocate(workers):
    workers.load()
    workers.allocate(PLANS)


def test_a_health_check_notices_a_death(ranks):
    workers = joined(ranks, Rank(1))
    workers.check_health()
    ranks.processes[1].die()
    with pytest.raises(EngineDeadError, match=r"worker 1 of 2 .* was killed by SIGKILL"):
        workers.check_health()


def test_after_a_shutdown_every_rank_has_ended_by_itself_and_nothing_can_be_asked(ranks):
    workers = joined(ranks, Rank(1))
    workers.shutdown()
    workers.shutdown()
    for thread in ranks._threads:
        thread.join(5)
        assert not thread.is_alive()
    assert all(len(process.patience_s) == 1 for process in ranks.processes)
    assert ranks.processes[0].patience_s[0] > 1
    for call in (workers.check_health, workers.load):
        with pytest.raises(EngineDeadError, match="the workers were shut down"):
            call()


def test_workers_that_have_not_joined_are_ended_by_a_shutdown(ranks):
    """Ctrl-C while they start: none can be sent `Stop`."""
    workers_of(ranks).shutdown()
    assert [process.patience_s for process in ranks.processes] == [[0.0], [0.0]]
