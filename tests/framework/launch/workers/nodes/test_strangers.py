"""Agents that come when all ranks have joined, and are refused, and agents that are lost."""

import time

import pytest
from processes import eventually
from scripted_agents import ScriptedAgent, joined
from scripted_rank import ThreadProcess

from quire.errors import EngineDeadError
from quire.interfaces.executor import WorkerGrid
from quire.launch.workers.nodes.agent_wire import EngineEnded, FromAgent
from quire.launch.workers.nodes.node_agents import NodeAgents
from quire.launch.workers.ranks.rank_link import RankLink
from quire.launch.workers.ranks.rank_links import RankLinks
from quire.launch.workers.worker_wire import (
    FromWorker,
    GetKey,
    Halt,
    Halted,
    Joined,
    SetKey,
    ToWorker,
)
from quire.process.launch_key import LaunchKey
from quire.process.network.network_channel import NetworkChannel
from quire.process.network.network_hub import NetworkHub

KEY = LaunchKey.new()


class Scene:
    """An engine with an agent and two ranks, which are channels of the test."""

    def __init__(self):
        self.hub = NetworkHub(FromWorker | FromAgent, "tcp://127.0.0.1:0", KEY)
        self.address = self.hub.address
        self.agents = NodeAgents(self.hub)
        self.agent = self.joining(joined(0, 2))
        self.agents.add(*self.hub.take(10))
        self.processes = [ThreadProcess(), ThreadProcess()]
        ranks = [RankLink(rank, WorkerGrid(2), self.processes[rank]) for rank in range(2)]
        self.links = RankLinks(self.hub, ranks, self.agents)
        self.channels = [self.rank(rank) for rank in range(2)]
        self.links.gather(Joined, 10)

    def joining(self, what):
        return ScriptedAgent(self.address.removeprefix("tcp://"), KEY.text, what)

    def rank(self, rank):
        channel = NetworkChannel(ToWorker, self.address, KEY)
        channel.connect(10)
        channel.send(Joined(rank, "machine-a", 50 + rank, [], 0))
        return channel

    def close(self):
        self.agent.stop()
        for channel in self.channels:
            channel.close()
        self.links.close(EngineDeadError("the test is over"))


@pytest.fixture
def scene():
    made = Scene()
    yield made
    made.close()


def check_for_ever(links):
    while True:
        links.check()


def test_an_agent_that_comes_too_late_is_refused_and_the_engine_goes_on(scene):
    late = scene.joining(joined(0, pid=9))
    while not late.received:
        scene.links.check()
    late.ends()
    assert "all ranks have joined already: ranks 0 to 1 on machine-a" in str(late.error)
    scene.links.check()


def test_the_end_of_a_rank_that_waits_for_a_key_is_named(scene):
    scene.channels[1].send(GetKey("address"))
    assert scene.links.receive(0.0) is None
    while not scene.links._askers:
        scene.links.check()
    scene.channels[1].close()
    scene.channels[0].send(SetKey("address", b"here"))
    with pytest.raises(EngineDeadError, match=r"worker 1 of 2 .*has lost its connection"):
        check_for_ever(scene.links)


def answer_long(scene):
    for _ in range(300):
        scene.links.send(Halt())
        for channel in scene.channels:
            channel.send(Halted(can_resume=True))
        scene.links.gather(Halted, 10)
        time.sleep(0.01)


def test_a_lost_agent_ends_the_engine_although_its_ranks_answer(scene):
    scene.agent.stop()
    with pytest.raises(EngineDeadError, match=r"worker 0 of 2 .*; worker 1 of 2 "):
        answer_long(scene)


def test_an_agent_hears_why_its_ranks_end(scene):
    with pytest.raises(EngineDeadError):
        scene.links.end("the test says so")
    eventually(lambda: scene.agent.received)
    assert scene.agent.received[0] == EngineEnded("the test says so")
