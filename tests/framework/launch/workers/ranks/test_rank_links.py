"""Links to ranks: messages, keys, deadlines and deaths."""

import os
import threading
import time

import msgspec
import pytest
from processes import eventually
from scripted_agents import ScriptedAgent, joined
from scripted_rank import ScriptedRanks, ThreadProcess

from quire.errors import CapacityError, CollectiveError, EngineDeadError
from quire.interfaces.executor import WorkerGrid
from quire.launch.workers.nodes.agent_wire import FromAgent
from quire.launch.workers.nodes.node_agents import NodeAgents
from quire.launch.workers.ranks import rank_links
from quire.launch.workers.ranks.rank_link import RankLink
from quire.launch.workers.ranks.rank_links import RankLinks
from quire.launch.workers.worker_wire import (
    Allocate,
    Completed,
    FromWorker,
    GetKey,
    Joined,
    KeyValue,
    Loaded,
    LoadWeights,
    Returned,
    SetKey,
    Stop,
    WorkerFailed,
    WorkerRefused,
)
from quire.messages import RankPlace, StepResult, WorkerInfo
from quire.process.error_message import ErrorMessage
from quire.process.launch_key import LaunchKey
from quire.process.local.local_channel import LocalChannel
from quire.process.network.network_hub import NetworkHub

LOADED = Loaded(WorkerInfo(kv_bytes=[1]))


@pytest.fixture
def ranks(tmp_path):
    made = ScriptedRanks(f"unix://{tmp_path}/hub", WorkerGrid(tp_size=2))
    yield made
    made.stop()


def silent(channel, message): ...


def loads(channel, message):
    channel.send(LOADED)


def receive_all(ranks, count):
    for _ in range(count):
        ranks.links.receive(time.monotonic() + 5)


def start(ranks, *scripts):
    ranks.run(*scripts)
    ranks.links.gather(Joined, 5)


def test_answers_are_returned_by_rank(ranks):
    start(ranks, loads)
    ranks.links.send(LoadWeights([]))
    assert ranks.links.gather(Loaded, 5) == [LOADED, LOADED]
    assert ranks.received == [[LoadWeights([])], [LoadWeights([])]]


def test_the_answer_of_a_later_rank_may_come_first(ranks):
    def loads_late(channel, message):
        time.sleep(0.2)
        channel.send(Loaded(WorkerInfo(kv_bytes=[2])))

    start(ranks, loads_late, loads)
    ranks.links.send(LoadWeights([]))
    assert [each.info.kv_bytes for each in ranks.links.gather(Loaded, 5)] == [[2], [1]]


def test_a_rank_that_answers_twice_does_not_answer_for_another(ranks):
    def loads_twice(channel, message):
        channel.send(LOADED)
        channel.send(LOADED)

    start(ranks, loads_twice, silent)
    ranks.links.send(LoadWeights([]))
    with pytest.raises(EngineDeadError, match=r"worker 0 of 2 .* sent .* unexpectedly"):
        ranks.links.gather(Loaded, 1)


def test_ranks_have_joined_when_the_last_one_has(ranks):
    assert not ranks.links.have_joined
    ranks.run(silent)
    ranks.links.receive(time.monotonic() + 5)
    assert not ranks.links.have_joined
    ranks.links.receive(time.monotonic() + 5)
    assert ranks.links.have_joined


def test_keys_travel_in_either_order(ranks):
    got = {}

    def asks_first(channel, message):
        if isinstance(message, LoadWeights):
            channel.send(GetKey("where"))
        elif isinstance(message, KeyValue):
            got["asked"] = message.value
            channel.send(SetKey("here", b"rank 0"))
            channel.send(LOADED)

    def publishes_late(channel, message):
        if isinstance(message, LoadWeights):
            time.sleep(0.1)
            channel.send(SetKey("where", b"rank 1"))
            channel.send(GetKey("here"))
        elif isinstance(message, KeyValue):
            got["answered"] = message.value
            channel.send(LOADED)

    start(ranks, asks_first, publishes_late)
    ranks.links.send(LoadWeights([]))
    assert ranks.links.gather(Loaded, 5) == [LOADED, LOADED]
    assert got == {"asked": b"rank 1", "answered": b"rank 0"}


def test_stacks_come_after_the_first_line_of_an_error(ranks):
    start(ranks, loads, lambda channel, message: None)
    for process in ranks.processes:
        process.state = lambda stack_fd: "its stack is\nFile a\nFile b"
    ranks.links.activity = "loading"
    with pytest.raises(EngineDeadError) as caught:
        ranks.links.end_late(ranks.links.links, 2.0)
    first_line, *stacks = str(caught.value).split("\n")
    assert caught.value.headline == first_line
    assert first_line.startswith("loading did not complete within 2 s: worker 0 of 2 ")
    assert first_line.count("has not answered, its stack is in the log") == 2
    assert [line for line in stacks if line.startswith("File")] == ["File a", "File b"] * 2
    assert stacks[0].startswith("worker 0 of 2 ")


def test_a_late_rank_ends_all_and_is_named_with_what_it_should_do(ranks):
    start(ranks, loads, silent)
    ranks.links.activity = "loading the weights"
    ranks.links.send(LoadWeights([]))
    text = r"loading the weights did not complete within 0.2 s: worker 1 of 2 .*a machine"
    with pytest.raises(EngineDeadError, match=text) as caught:
        ranks.links.gather(Loaded, 0.2)
    assert "worker 0" not in str(caught.value)
    assert [process.patience_s for process in ranks.processes] == [[0.0], [0.0]]


def test_a_death_is_named_with_what_was_done_and_is_raised_again(ranks):
    start(ranks, loads, silent)
    ranks.links.activity = "step 7"
    ranks.processes[1].die()
    text = r"^worker 1 of 2 \(tensor-parallel rank 1, process 1001, on a machine\) was killed by "
    with pytest.raises(EngineDeadError, match=text + "SIGKILL, during or after step 7$") as first:
        ranks.links.receive(time.monotonic() + 5)
    for call in (ranks.links.check, lambda: ranks.links.send(LoadWeights([]))):
        with pytest.raises(EngineDeadError) as again:
            call()
        assert str(again.value) == str(first.value)


def test_a_death_is_noticed_while_messages_keep_arriving(ranks, monkeypatch):
    def flood(channel, message):
        for _ in range(1000):
            channel.send(LOADED)

    monkeypatch.setattr(rank_links, "LOOK_INTERVAL_S", 0.0)
    start(ranks, flood)
    ranks.links.send(LoadWeights([]))
    ranks.links.receive(time.monotonic() + 5)
    time.sleep(0.2)
    ranks.processes[1].die("was given up")
    with pytest.raises(EngineDeadError, match=r"^worker 1 of 2 .* was given up"):
        receive_all(ranks, 900)


def test_the_last_words_of_a_dead_rank_are_the_reason(ranks):
    def fails(channel, message):
        channel.send(WorkerFailed(ErrorMessage.of(CapacityError("no memory for this"))))
        time.sleep(0.1)
        ranks.processes[1].die("ended with exit code 1")

    start(ranks, silent, fails)
    ranks.links.send(LoadWeights([]))
    with pytest.raises(EngineDeadError, match=r"worker 1 of 2 .* failed: no memory for this"):
        ranks.links.gather(Loaded, 5)


def test_a_rank_that_waited_for_a_dead_one_is_not_blamed(ranks):
    def waits(channel, message):
        channel.send(WorkerFailed(ErrorMessage.of(CollectiveError("rank 1 is behind"))))
        time.sleep(0.2)
        ranks.processes[1].die()

    start(ranks, waits, silent)
    ranks.links.send(LoadWeights([]))
    with pytest.raises(EngineDeadError, match=r"^worker 1 of 2 .* was killed by SIGKILL"):
        ranks.links.gather(Loaded, 5)


IN_VAIN = WorkerFailed(ErrorMessage.of(CollectiveError("rank 1 is behind")))
FULL = WorkerFailed(ErrorMessage.of(CapacityError("no memory for this")))


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (LOADED, r"^worker 1 of 2 .* was killed by SIGKILL"),
        (IN_VAIN, r"^worker 1 of 2 .* was killed by SIGKILL"),
        (FULL, r"worker 0 of 2 .* failed: no memory for this"),
    ],
)
def test_a_rank_that_has_disconnected_is_named_with_its_end(ranks, said, reason):
    start(ranks, lambda channel, _: channel.send(said), lambda channel, _: channel.close())
    ranks.links.send(LoadWeights([]))
    time.sleep(0.2)  # until rank 0 has answered and rank 1 has disconnected
    death = threading.Timer(0.2, ranks.processes[1].die)
    death.start()
    with pytest.raises(EngineDeadError, match=reason):
        ranks.links.send(Allocate([]))
    death.join()


def test_a_rank_that_has_disconnected_without_an_end_says_so(ranks):
    start(ranks, loads, lambda channel, _: channel.close())
    ranks.links.send(LoadWeights([]))
    time.sleep(0.2)
    with pytest.raises(EngineDeadError, match="has disconnected"):
        ranks.links.send(Allocate([]))


def test_a_rank_that_waits_in_vain_says_for_whom_and_what_that_one_does(ranks):
    def waits(channel, message):
        channel.send(WorkerFailed(ErrorMessage.of(CollectiveError("rank 1 is behind"))))

    start(ranks, waits, silent)
    ranks.links.send(LoadWeights([]))
    text = "worker 0 of 2 .* failed: rank 1 is behind; worker 1 of 2 .* its state cannot be read"
    with pytest.raises(EngineDeadError, match=text):
        ranks.links.gather(Loaded, 5)


def test_a_refusal_has_the_type_and_the_text_of_its_cause(ranks):
    ranks.run(silent)
    ranks.links.gather(Joined, 5)
    channel = LocalChannel(LoadWeights, ranks.address)
    channel.send(WorkerRefused(1, ErrorMessage.of(CapacityError("too small"))))
    with pytest.raises(CapacityError, match=r"^worker 1 of 2 .*: too small$"):
        ranks.links.receive(time.monotonic() + 5)
    with pytest.raises(EngineDeadError, match=r"did not start: worker 1 .*: too small"):
        ranks.links.check()
    channel.close()


@pytest.mark.parametrize("rank", [0, 2, -1])
def test_a_rank_twice_or_none_of_ours_is_refused(ranks, rank):
    start(ranks, silent)
    channel = LocalChannel(LoadWeights, ranks.address)
    channel.send(Joined(rank, "another machine", 5, [], 0))
    text = f"process 5 on another machine joined as rank {rank}, which is taken or not among"
    with pytest.raises(EngineDeadError, match=text):
        ranks.links.receive(time.monotonic() + 5)
    channel.close()


@pytest.mark.parametrize("message", [LOADED, SetKey("a", b"b"), GetKey("a")])
def test_a_process_that_has_not_joined_is_not_listened_to(ranks, message):
    start(ranks, silent)
    channel = LocalChannel(LoadWeights, ranks.address)
    channel.send(message)
    with pytest.raises(EngineDeadError, match="a process that has not joined sent"):
        ranks.links.receive(time.monotonic() + 5)
    channel.close()


@pytest.mark.parametrize(
    "answer", [Returned(1, None), Completed(StepResult(plan_id=1, results=[]))]
)
def test_an_answer_to_another_question_ends_all(ranks, answer):
    start(ranks, lambda channel, message: channel.send(answer))
    ranks.links.send(Allocate([1]))
    with pytest.raises(EngineDeadError, match=r"sent .* unexpectedly"):
        ranks.links.gather(Loaded, 5)


def test_an_idle_check_notices_a_death_and_nothing_else(ranks):
    start(ranks, silent)
    ranks.links.check()
    ranks.links.check()
    ranks.processes[0].die()
    with pytest.raises(EngineDeadError, match=r"worker 0 of 2"):
        ranks.links.check()


def test_an_unreadable_message_ends_all(ranks):
    start(ranks, lambda channel, message: channel.send(msgspec.Raw(b"\xff")))
    ranks.links.send(LoadWeights([]))
    with pytest.raises(EngineDeadError, match="not a valid message"):
        ranks.links.gather(Loaded, 5)
    assert all(process.patience_s for process in ranks.processes)


def test_patience_is_for_all_ranks_together(ranks):
    start(ranks, silent)
    ranks.processes[0].exit_s = 0.15
    ranks.links.close(EngineDeadError("enough"), 0.2)
    first, second = (process.patience_s[0] for process in ranks.processes)
    assert 0.15 < first <= 0.2
    assert 0.0 <= second <= 0.05


def test_a_fork_can_neither_use_nor_end_the_ranks(ranks):
    start(ranks, silent)
    pid = os.fork()
    if pid == 0:
        try:
            ranks.links.check()
        except EngineDeadError as error:
            ranks.links.close(error)
            was_ended = any(process.patience_s for process in ranks.processes)
            os._exit(0 if "fork" in str(error) and not was_ended else 2)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    ranks.links.check()
    assert not any(process.patience_s for process in ranks.processes)


def test_an_end_that_the_executor_sees_counts_although_the_agents_report_none():
    key, grid = LaunchKey.new(), WorkerGrid(tp_size=2)
    hub = NetworkHub(FromWorker | FromAgent, "tcp://127.0.0.1:0", key)
    agents = NodeAgents(hub)
    address = hub.address.removeprefix("tcp://")
    joining = [ScriptedAgent(address, key.text, joined(rank)) for rank in range(grid.size)]
    for _ in joining:
        agents.add(*hub.take(10))
    processes = [ThreadProcess() for _ in range(grid.size)]
    ranks = [RankLink(rank, grid, process) for rank, process in enumerate(processes)]
    links = RankLinks(hub, ranks, agents)
    try:
        links.check()
        processes[1].die("was ended by the scheduler")
        with pytest.raises(EngineDeadError, match=r"^worker 1 of 2 .* was ended by the scheduler"):
            links.check()
    finally:
        for agent in joining:
            agent.stop()
        links.close(EngineDeadError("the test is over"))


def test_ranks_with_much_to_read_are_told_to_stop_before_their_time_runs(ranks):
    start(ranks, lambda channel, message: time.sleep(0.1))
    places = [RankPlace("x" * 10**6, "", "", 0)]
    ranks.links.send(LoadWeights(places))
    ranks.links.send(Stop())
    ranks.links.close(EngineDeadError("enough"), 5.0)
    eventually(lambda: not any(thread.is_alive() for thread in ranks._threads))
    assert ranks.received == [[LoadWeights(places)]] * 2
