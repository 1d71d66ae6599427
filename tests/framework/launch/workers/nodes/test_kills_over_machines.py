"""Death and silence of every process of an engine whose ranks have joined, in every phase.

    engine <-- agent 0 <-- rank 0
       ^------ agent 1 <-- rank 1

The engine has written the key of the launch. On loopback the ranks share memory; between machines,
which are network namespaces, they use Gloo. (Decode steps: test_joined_ranks.py.)
"""

import os
import re
import signal
import socket
import time
from contextlib import ExitStack, contextmanager

import pytest
from engine_program import EngineProgram
from joining_agents import JoiningAgents
from network_namespaces import Network
from processes import eventually, is_running, workers_of
from watched_launch import watched

from quire.process.start_key import StartKey
from quire.testing.checkpoints import write_checkpoint

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
VICTIMS = ("engine", "agent1", "rank0", "rank1")
LONG_PROMPT = [7] * 25_000
LIMIT_S = 20.0  # for what takes a second, on a machine that others use
WAIT_S = 60.0
SILENCE_S = 5.0  # after which a connection is lost
STOP_TIMEOUT_S = 10.0
START_TIMEOUT_S = 12.0  # in the phases in which it is the deadline
SLOW = pytest.mark.slow
QUICK = [("load", "rank1", KILL), ("idle", "engine", KILL)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = write_checkpoint(
        tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM", max_position_embeddings=30_000
    )
    return str(written.folder)


@pytest.fixture
def launch(tmp_path, monkeypatch):
    yield from watched(tmp_path, monkeypatch)


class Scene:
    """An engine and its agents, on one machine or on two.

    Attributes:
        key_file: File in which the engine writes its key.
    """

    def __init__(self, tmp_path, folder, launch, machines, second, **changes):
        self.machines, self._second, self._launch = machines, second, launch
        self._network = set(launch.processes())
        host = "127.0.0.1" if machines[0] is None else machines[0].address
        self._joining = JoiningAgents(tmp_path, host, has_key=False)
        self.key_file = self._joining.key_file
        options = {
            "tensor_parallel_size": 2,
            "dtype": "float32",
            "threads": 1,
            "max_num_batched_tokens": 16,
            "max_num_seqs": 2,
            **self._joining.options(),
            **changes,
        }
        self.engine = EngineProgram(folder, options, tmp_path / "engine.log", machines[0])
        self.agents = {}
        self.pids = {"engine": self.engine.process.pid}
        self.signalled_s = 0.0

    def start_agent(self, rank):
        more = self._second if rank == 1 else []
        agent = self._joining.start(rank, 1, *more, machine=self.machines[rank])
        self.agents[rank] = agent
        self.pids[f"agent{rank}"] = agent.pid

    def start_agents(self):
        for rank in range(2):
            self.start_agent(rank)

    def await_joined(self, *ranks):
        eventually(lambda: all("joined the engine" in self.log(rank) for rank in ranks))

    def await_rank(self, rank):
        """Wait until a rank is started, and not only forked."""
        eventually(lambda: self._ranks_of(rank))
        (self.pids[f"rank{rank}"],) = self._ranks_of(rank)

    def await_ready(self):
        assert self.engine.answer() == ["ready", None]
        for rank in range(2):
            self.await_rank(rank)

    def signal(self, victim, number):
        self.signalled_s = time.monotonic()
        os.kill(self.pids[victim], number)

    def node(self, rank):
        machine = self.machines[rank]
        return socket.gethostname() if machine is None else machine.name

    def log(self, rank):
        return self._joining.log(self.agents[rank])

    def end(self, rank):
        """Wait until an agent has ended; return its exit status and its log."""
        return self._joining.end(self.agents[rank])

    def _ranks_of(self, agent):
        return set(workers_of(self.agents[agent].pid)) & set(self._launch.workers())

    def processes(self):
        """The processes of the engine and its agents."""
        return set(self._launch.processes()) - self._network

    def check_time(self, limit_s):
        assert time.monotonic() - self.signalled_s < limit_s

    def close(self):
        self.engine.close()
        self._joining.close()


@pytest.fixture
def scenes(tmp_path, folder, launch):
    @contextmanager
    def make(place="loopback", second=(), **changes):
        with ExitStack() as stack:
            machines = [None, None]
            if place == "machines":
                machines = stack.enter_context(Network(2)).machines
                if second:
                    second = ("--host-ip", machines[1].other_address)
            scene = Scene(tmp_path, folder, launch, machines, second, **changes)
            stack.callback(scene.close)
            yield scene

    return make


def cases(phase, *others):
    """Parameters of a phase, those that are not quick marked slow."""
    every = [(victim, number, "loopback") for victim in VICTIMS for number in (KILL, STOP)]
    every += [(victim, number, "machines") for victim in others for number in (KILL, STOP)]
    found = [
        pytest.param(
            *case,
            id=f"{case[0]}-{case[1].name}-{case[2]}",
            marks=() if (phase, *case[:2]) in QUICK and case[2] == "loopback" else SLOW,
        )
        for case in every
    ]
    return pytest.mark.parametrize(("victim", "number", "place"), found)


def check_named(scene, victim, number):
    """Check that the engine ends in time, with an error that names the rank and what happened."""
    rank = int(victim[-1])
    kind, text = scene.engine.answer()
    if (victim, number) == ("agent1", STOP) and kind in ("ready", "tokens"):  # not missed yet
        scene.engine.ask([[3, 4, 5]], 20_000)
        kind, text = scene.engine.answer()
    scene.check_time(LIMIT_S + (SILENCE_S if number == STOP else 0))
    assert kind == "EngineDeadError"
    process = f"process {scene.pids[f'rank{rank}']}, on {scene.node(rank)})"
    name = rf"worker {rank} of 2 \(tensor-parallel rank {rank}, {re.escape(process)}"
    if victim.startswith("agent"):
        what = "is lost: the connection to its agent has ended"
    else:
        what = "was killed by SIGKILL" if number == KILL else ".*it is stopped by a signal"
    assert re.search(f"{name} {what}", text), text


def check_engine_lost(scene, number, *ranks):
    """Check that agents end in time without their engine; a stopped one goes on afterwards."""
    for rank in ranks:
        status, log = scene.end(rank)
        assert (status, "the connection to the engine" in log) == (1, True), log
        assert "Traceback" not in log, log
        for pid in [pid for name, pid in scene.pids.items() if name == f"rank{rank}"]:
            assert not is_running(pid)
    scene.check_time(LIMIT_S + (SILENCE_S if number == STOP else 0))
    if number == STOP:
        os.kill(scene.pids["engine"], signal.SIGCONT)


def check_nothing_left(scene, launch, victim, number, *, other=frozenset({1}), is_key_left=False):
    """Check that all processes end, also those of a stopped agent, before it goes on.

    Args:
        other: Exit statuses that an agent may have that has nothing to do with the victim.
    """
    if victim.startswith("agent") and number == STOP:
        eventually(lambda: not launch.workers())
        os.kill(scene.pids[victim], signal.SIGCONT)
    scene.engine.process.wait(WAIT_S)
    for rank in scene.agents:
        status, log = scene.end(rank)
        if (victim, number) == (f"agent{rank}", KILL):
            assert status == -KILL
        else:
            is_other = str(rank) != victim.replace("engine", "1")[-1]
            may_be = other if is_other else other | {1}
            assert status in may_be, log
    eventually(lambda: not scene.processes())
    assert scene.key_file.exists() is is_key_left
    StartKey(scene.key_file).remove()  # the next engine can have it
    assert not scene.key_file.exists()


@cases("join")
def test_while_agents_join(scenes, launch, victim, number, place):
    with scenes(place, worker_start_timeout_s=START_TIMEOUT_S) as scene:
        if victim.startswith("rank"):
            scene.start_agents()
            scene.await_rank(int(victim[-1]))
        else:
            scene.start_agent(1)
            scene.await_joined(1)
        scene.signal(victim, number)
        if victim == "engine":
            check_engine_lost(scene, number, 1)
        if victim.startswith("rank"):
            rank_does_not_join(scene, victim, number)
        elif (victim, number) != ("engine", KILL):
            check_left(scene)
        is_key_left = (victim, number) == ("engine", KILL)
        check_nothing_left(scene, launch, victim, number, is_key_left=is_key_left)


def rank_does_not_join(scene, victim, number):
    kind, text = scene.engine.answer()
    scene.check_time(LIMIT_S + (START_TIMEOUT_S if number == STOP else 0))
    assert kind == "EngineDeadError"
    name = rf"worker {victim[-1]} of 2 \(.*process {scene.pids[victim]}, on {scene.node(0)}\)"
    what = "was killed by SIGKILL" if number == KILL else "has not answered, it is stopped by"
    assert re.search(f"{name} {what}", text), text


def check_left(scene):
    """Check that the engine names the agent that has left when the others do not join in time."""
    kind, text = scene.engine.answer()
    scene.check_time(LIMIT_S + START_TIMEOUT_S)
    assert kind == "EngineDeadError"
    agent = rf"rank 1 on {scene.node(1)} \(127\.0\.0\.1, agent process {scene.pids['agent1']}\)"
    assert re.search(rf"ranks 0, 1 of 2 did not join .*joined: none; left again: {agent}", text), (
        text
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "number"),
    [("engine", KILL), ("engine", STOP), ("agent0", KILL), ("agent0", STOP), ("agent1", KILL)],
    ids=["engine-SIGKILL", "engine-SIGSTOP", "agent0-SIGKILL", "agent0-SIGSTOP", "agent1-SIGKILL"],
)
def test_while_machines_try_to_reach_each_other(scenes, launch, victim, number):
    with scenes("machines", second="an address that leads nowhere") as scene:
        scene.start_agents()
        scene.await_joined(0, 1)
        time.sleep(1)  # agent 1 has answered; the attempts of agent 0 take 5 s
        scene.signal(victim, number)
        if victim == "engine":
            check_engine_lost(scene, number, 0, 1)
        else:
            check_left_while_joining(scene, victim)
        if (victim, number) == ("engine", STOP):  # the answers have come before the agents left
            assert scene.engine.answer()[0] in ("SettingsError", "EngineDeadError")
        is_key_left = (victim, number) == ("engine", KILL)
        check_nothing_left(scene, launch, victim, number, is_key_left=is_key_left)


def check_left_while_joining(scene, victim):
    kind, text = scene.engine.answer()
    scene.check_time(LIMIT_S + SILENCE_S)
    assert kind == "EngineDeadError"
    node = re.escape(scene.node(int(victim[-1])))
    process = f"agent process {scene.pids[victim]}"
    assert re.search(rf"rank {victim[-1]} on {node} \(.*, {process}\) left while joining", text), (
        text
    )


@cases("load", "agent1", "rank0", "rank1")
def test_while_ranks_load(scenes, launch, victim, number, place):
    with scenes(place, worker_start_timeout_s=60.0) as scene:
        scene.start_agents()
        for rank in range(2):
            scene.await_rank(rank)
        eventually(lambda: "workers: worker 0 of 2" in scene.engine.log)
        eventually(lambda: not scene.key_file.exists())
        scene.signal(victim, number)
        check_working_end(scene, launch, victim, number)


@cases("prefill", "agent1", "rank0", "rank1")
def test_in_a_prefill(scenes, launch, victim, number, place):
    with scenes(place) as scene:
        scene.start_agents()
        scene.await_ready()
        scene.engine.ask([LONG_PROMPT], 10)
        time.sleep(0.3)
        scene.signal(victim, number)
        check_working_end(scene, launch, victim, number)


@cases("idle")
def test_while_the_engine_is_idle(scenes, launch, victim, number, place):
    with scenes(place) as scene:
        scene.start_agents()
        scene.await_ready()
        scene.engine.ask([[3, 4, 5]], 4)
        scene.engine.answer()
        scene.signal(victim, number)
        if victim != "engine":
            scene.engine.ask([[3, 4, 5]], 4)
        check_working_end(scene, launch, victim, number, is_idle=True)


@cases("shutdown")
def test_while_the_engine_shuts_down(scenes, launch, victim, number, place):
    with scenes(place) as scene:
        scene.start_agents()
        scene.await_ready()
        scene.engine.ask([[3, 4, 5]], 4)
        scene.engine.answer()
        if victim == "engine":
            scene.signal("rank1", STOP)  # for which the engine waits
            scene.engine.begin_stop()
            assert scene.end(0)[0] == 0
            scene.signal(victim, number)
            check_engine_lost(scene, number, 1)
        else:
            scene.signal(victim, number)
            scene.engine.stop()
            scene.check_time(STOP_TIMEOUT_S + LIMIT_S)
            assert scene.engine.process.returncode == 0
        other = {0, 1} if victim == "agent1" else {0}  # a lost agent may be noticed before the end
        check_nothing_left(scene, launch, victim, number, other=other)


def check_working_end(scene, launch, victim, number, *, is_idle=False):
    if victim != "engine":
        check_named(scene, victim, number)
    else:
        check_engine_lost(scene, number, 0, 1)
        if number == STOP:
            if is_idle:
                scene.engine.ask([[3, 4, 5]], 4)
            assert scene.engine.answer()[0] == "EngineDeadError"
    check_nothing_left(scene, launch, victim, number)
