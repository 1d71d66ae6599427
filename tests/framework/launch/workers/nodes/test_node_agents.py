"""Agents as the engine sees them: ends and states of ranks, and agents that are lost."""

import pytest
from processes import eventually
from scripted_agents import ScriptedAgent, joined

from quire.errors import EngineDeadError
from quire.launch.workers.nodes.agent_wire import (
    AgentFailed,
    DescribeRank,
    FromAgent,
    KillRank,
    RankEnded,
    RankStarted,
    RankState,
)
from quire.launch.workers.nodes.node_agents import LOST, NodeAgents
from quire.launch.workers.nodes.remote_process import RemoteProcess
from quire.process.error_message import ErrorMessage
from quire.process.launch_key import LaunchKey
from quire.process.network.network_hub import NetworkHub


class Scene:
    """A hub, agents that have joined it, and what the engine knows of them."""

    def __init__(self, *agents):
        key = LaunchKey.new()
        self.hub = NetworkHub(FromAgent, "tcp://127.0.0.1:0", key)
        self.known = NodeAgents(self.hub)
        address = self.hub.address.removeprefix("tcp://")
        self.agents = [ScriptedAgent(address, key.text, what, self.answer) for what in agents]
        for _ in agents:
            self.known.add(*self.hub.take(10))
        self.answers = []

    def answer(self, channel, message):
        for kind, reply in self.answers:
            if isinstance(message, kind):
                channel.send(reply)

    def report(self, index, *messages):
        """Make an agent report something, by its answer to a kill."""
        for message in messages:
            self.answers = [(KillRank, message)]
            before = len(self.agents[index].received)
            self.hub.send([self.known.peers[index]], KillRank(0))
            eventually(lambda before=before: len(self.agents[index].received) > before)

    def close(self):
        for agent in self.agents:
            agent.stop()
        self.hub.close()


@pytest.fixture
def scene():
    made = Scene(joined(0), joined(1, 2, node="machine-b", node_id="b"))
    yield made
    made.close()


def test_the_end_of_a_rank_is_told_as_its_agent_reports_it(scene):
    process = RemoteProcess(2, scene.known)
    scene.report(1, RankStarted(2, 77), RankEnded(2, "was killed by SIGKILL"))
    assert process.end(10) == "was killed by SIGKILL"
    assert process.end(0) == "was killed by SIGKILL"
    assert process.pid == 77
    assert process.node == "machine-b"
    assert set(scene.known.ended) == {2}


def test_a_rank_that_runs_on_is_killed(scene):
    scene.answers = [(KillRank, RankEnded(0, "was killed by SIGKILL"))]
    assert RemoteProcess(0, scene.known).end(0.1) == "was killed by SIGKILL"


def test_what_an_agent_reports_before_it_goes_is_believed(scene):
    scene.report(1, RankEnded(1, "was killed by SIGSEGV"))
    scene.agents[1].stop()
    eventually(lambda: not scene.hub._reaches(scene.known.peers[1]))
    assert scene.known.wait_end(1, 10) == "was killed by SIGSEGV"
    assert scene.known.wait_end(2, 10) == LOST


def test_the_ranks_of_an_agent_that_fails_end_with_its_reason(scene):
    scene.report(1, AgentFailed(ErrorMessage.of(EngineDeadError("it was interrupted"))))
    for rank in (1, 2):
        assert "because it was interrupted" in scene.known.wait_end(rank, 10)
    assert scene.known.wait_end(0, 0) is None


def test_an_agent_says_what_a_rank_is_doing(scene):
    process = RemoteProcess(1, scene.known)
    scene.answers = [(DescribeRank, RankState(1, "its stack is\nhere"))]
    assert process.state(5) == "its stack is\nhere"
    assert DescribeRank(1, 5) in scene.agents[1].received


def test_an_agent_that_does_not_answer_is_said_not_to(scene, monkeypatch):
    monkeypatch.setattr("quire.launch.workers.nodes.node_agents.STATE_TIMEOUT_S", 0.2)
    assert "does not answer either" in RemoteProcess(1, scene.known).state(5)


def test_an_agent_reports_nothing_about_the_ranks_of_others(scene):
    scene.report(0, RankEnded(2, "was killed"))
    with pytest.raises(EngineDeadError, match=r"rank 0 on machine-a .* unexpectedly"):
        scene.known.wait_end(2, 10)
