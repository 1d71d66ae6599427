"""Agents of machines without ranks: threads that join an engine and answer by a script."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import quire
from quire.errors import EngineDeadError
from quire.launch.workers.nodes.agent_wire import (
    AgentJoined,
    AgentRefused,
    Probe,
    Probed,
    StartRanks,
    ToAgent,
)
from quire.launch.workers.nodes.reachability import ProbeTarget
from quire.process.hub import HubChannel
from quire.process.launch_key import LaunchKey
from quire.process.network.network_channel import NetworkChannel

Answer = Callable[[HubChannel, Any], None]


def joined(first_rank=0, num_ranks=1, **changes) -> AgentJoined:
    """What an agent says of itself."""
    fields = {
        "version": quire.__version__,
        "node": "machine-a",
        "node_id": "a",
        "pid": 100 + first_rank,
        "first_rank": first_rank,
        "num_ranks": num_ranks,
        "target": ProbeTarget("127.0.0.1", 1, b""),
        "devices": None,
    }
    return AgentJoined(**(fields | changes))


@dataclass
class ScriptedAgent:
    """An agent in a thread; it says that it reaches everything.

    Attributes:
        received: Messages of the engine.
        error: Error with which the engine refused it.
        probed: Its answer to a probe, or a function that returns it, or None for no answer; by
            default, it reaches everything.
    """

    address: str
    key: str
    what: AgentJoined
    answer: Answer = lambda channel, message: None
    received: list[Any] = field(default_factory=list)
    error: Exception | None = None
    probed: list[str | None] | Callable[[HubChannel], list[str | None] | None] | None = None

    def __post_init__(self) -> None:
        self._is_stopping = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        key = LaunchKey.from_text(self.key)
        channel = NetworkChannel(ToAgent, f"tcp://{self.address}", key)
        channel.connect(10)
        channel.send(self.what)
        with suppress(EngineDeadError):  # the engine is gone
            while not self._is_stopping:
                channel.wait(0.02)
                while not self._is_stopping and (message := channel.receive(0.0)) is not None:
                    self._take(channel, message)
        channel.close(0.1)

    def _take(self, channel: HubChannel, message: Any) -> None:
        self.received.append(message)
        match message:
            case Probe():
                self._answer_probe(channel, len(message.targets))
            case AgentRefused():
                self.error = message.error.error()
                self._is_stopping = True
            case StartRanks() | _:
                self.answer(channel, message)

    def _answer_probe(self, channel: HubChannel, num_targets: int) -> None:
        answer = self.probed(channel) if callable(self.probed) else self.probed or []
        if answer is not None:
            channel.send(Probed(list(answer) or [None] * num_targets))

    def stop(self) -> None:
        """End the connection, and the thread."""
        self._is_stopping = True
        self._thread.join(10)

    def ends(self) -> None:
        """Wait until the engine has ended the agent."""
        self._thread.join(10)
        assert not self._thread.is_alive()
