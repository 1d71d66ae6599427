"""The engine's port for ranks on other machines: agents join, are compared, and start their ranks.

Before anything is started the engine checks that every rank has one agent, that all have the same
version of quire, that each machine has a GPU for each of its ranks, and that all reach each other.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import quire
from quire.config import ServerSettings, Settings
from quire.errors import CapacityError, EngineDeadError, QuireError, SettingsError
from quire.interfaces.executor import JoinPoint, WorkerGrid, WorkerProcess
from quire.launch.workers.nodes.agent_wire import (
    AgentFailed,
    AgentJoined,
    FromAgent,
    Probe,
    Probed,
    StartRanks,
)
from quire.launch.workers.nodes.node_agents import NodeAgents
from quire.launch.workers.nodes.reachability import PROBE_TIMEOUT_S, check_reachability
from quire.launch.workers.nodes.remote_process import RemoteProcess
from quire.launch.workers.worker_wire import FromWorker
from quire.messages import RankPlace
from quire.process.hub import Peer
from quire.process.launch_key import LaunchKey
from quire.process.network.network_hub import NetworkHub
from quire.process.network.tcp_address import TcpAddress
from quire.process.start_key import StartKey

CHECK_S = 0.5  # interval of the executor's own check
PROBE_GRACE_S = 10.0  # time for an agent to begin
LINGER_S = 2.0  # time for the agents to read why they are refused

logger = logging.getLogger(__name__)


class TcpJoinPoint(JoinPoint):
    """The engine's port for ranks on other machines.

    Args:
        settings: Settings of the engine.
        grid: Grid of the ranks.
        host: Address to listen on if `worker_address` is not set.
        needs_gpus: Whether each rank needs a GPU.

    Raises:
        SettingsError: There is no address, or nothing can listen on it.

    Attributes:
        hub: Hub to which agents and ranks connect.
        agents: Agents of the machines.
    """

    def __init__(
        self, settings: Settings, grid: WorkerGrid, host: str | None, *, needs_gpus: bool
    ) -> None:
        self._settings = settings
        self._grid = grid
        self._needs_gpus = needs_gpus
        self._timeout_s = settings.parallel.worker_start_timeout_s
        file = settings.parallel.worker_key_file
        self._start_key = StartKey(file or None)
        try:
            self.hub = _listening_hub(_endpoint(settings, host), self._start_key.key)
        except BaseException:
            self.remove_key()
            raise
        self.key = self._start_key.key.text
        self.address = self.hub.address.removeprefix("tcp://")
        self.has_key_file = bool(file)
        if TcpAddress.parse(self.hub.address).is_loopback:
            logger.warning(
                "only workers on this machine can join at %s; set --worker-address to an address "
                "that other machines reach",
                self.address,
            )
        self.agents = NodeAgents(self.hub)
        self._left: dict[int, AgentJoined] = {}  # by first rank, until another one takes its place

    def wait(self, check: Callable[[], None]) -> Sequence[WorkerProcess]:
        """Wait until agents with all ranks have joined, and make them start their ranks."""
        logger.info("waiting for %d workers to join at %s", self._grid.size, self.address)
        try:
            self._wait_for_agents(check)
            check_versions(self.agents.joined)
            if self._needs_gpus:
                check_devices(self.agents.joined)
            self._check_reachability()
            settings = replace(self._settings, server=ServerSettings())  # without the API key
            log_level = logging.getLogger("quire").getEffectiveLevel()
            self.agents.send_all(StartRanks(settings, log_level))
        except QuireError as error:
            self.agents.refuse_all(error)
            raise
        return [RemoteProcess(rank, self.agents) for rank in range(self._grid.size)]

    @property
    def places(self) -> list[RankPlace]:
        """Place of each rank, once all have joined."""
        return rank_places(self.agents.joined)

    def close(self) -> None:
        """Close the port, and remove the file of the key if it was written for this start."""
        self.remove_key()
        self.hub.close(linger_s=LINGER_S)

    def remove_key(self) -> None:
        """Remove the file of the key if it was written for this start."""
        self._start_key.remove()

    def _wait_for_agents(self, check: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while missing := self._missing():
            check()
            if time.monotonic() >= deadline:
                raise EngineDeadError(
                    f"ranks {_listed(missing)} of {self._grid.size} did not join at {self.address} "
                    f"within {self._timeout_s:g} s; joined: {_named(self.agents.joined)}; left "
                    f"again: {_named(self._left.values())}. Start `quire worker --join "
                    f"{self.address} --key-file FILE --rank R` on their machines"
                )
            self.hub.wait(CHECK_S)
            for peer in self.hub.lost():
                self._remove(peer, "its connection has ended")
            while (received := self.hub.take()) is not None:
                self._take(*received)

    def _check_reachability(self) -> None:
        """Make the machines try to reach each other; the agents of one have no need to.

        Raises:
            SettingsError: Some cannot; the message has all failures.
            EngineDeadError: An agent left, or did not answer.
        """
        joined = self.agents.joined
        if len({agent.node_id for agent in joined}) == 1:
            return
        targets = [agent.target for agent in joined]
        self.agents.send_all(Probe(targets))
        deadline = time.monotonic() + PROBE_TIMEOUT_S + PROBE_GRACE_S
        reasons: dict[Peer, list[str | None]] = {}
        while late := [peer for peer in self.agents.peers if peer not in reasons]:
            if lost := [peer for peer in self.hub.lost() if self.agents.is_agent(peer)]:
                raise EngineDeadError(f"{self.agents.named(lost)} left while joining")
            if time.monotonic() >= deadline:
                raise EngineDeadError(f"{self.agents.named(late)} did not try to reach the others")
            self.hub.wait(CHECK_S)
            while (received := self.hub.take()) is not None:
                self._take_probed(reasons, *received)
        names = [str(agent) for agent in joined]
        check_reachability(names, targets, [reasons[peer] for peer in self.agents.peers])

    def _take_probed(self, reasons: dict[Peer, list[str | None]], peer: Peer, message: Any) -> None:
        """Take a message while the machines try to reach each other."""
        if not self.agents.is_agent(peer):
            if not self.agents.take_stranger(peer, message):
                raise EngineDeadError(f"a process that has not joined sent {message!r}")
            return
        name = self.agents.named([peer])
        match message:
            case Probed():
                reasons[peer] = message.reasons
            case AgentFailed():
                raise EngineDeadError(f"{name} left while joining: {message.error.message}")
            case _:
                raise EngineDeadError(f"{name} sent {message!r} unexpectedly")

    def _missing(self) -> list[int]:
        joined = {rank for agent in self.agents.joined for rank in agent.ranks}
        return [rank for rank in range(self._grid.size) if rank not in joined]

    def _take(self, peer: Peer, message: Any) -> None:
        match message:
            case AgentJoined():
                self._add(peer, message)
            case AgentFailed():
                self._remove(peer, message.error.message)
            case _:
                raise EngineDeadError(f"a process that has not joined sent {message!r}")

    def _add(self, peer: Peer, agent: AgentJoined) -> None:
        if (reason := self._refusal(agent)) is not None:
            logger.warning("%s was refused: %s", agent, reason)
            self.agents.refuse(peer, SettingsError(reason))
            return
        self.agents.add(peer, agent)
        self._left.pop(agent.first_rank, None)
        logger.info("joined: %s", agent)

    def _remove(self, peer: Peer, reason: str) -> None:
        """Remove an agent that has left before the start; another one may take its place."""
        if (agent := self.agents.remove(peer)) is not None:
            self._left[agent.first_rank] = agent
            logger.warning("%s left before the start: %s", agent, reason)

    def _refusal(self, agent: AgentJoined) -> str | None:
        if agent.ranks[-1] >= self._grid.size:
            return (
                f"rank {agent.ranks[-1]} is not among the {self._grid.size} ranks of "
                f"tensor_parallel_size {self._grid.tp_size} and pipeline_parallel_size "
                f"{self._grid.pp_size}; --rank goes from 0 to {self._grid.size - 1}"
            )
        for other in self.agents.joined:
            if taken := sorted(set(agent.ranks) & set(other.ranks)):
                free = _listed(self._missing())
                return f"rank {_listed(taken)} has joined already: {other}; ranks missing: {free}"
        return None


def rank_places(agents: Sequence[AgentJoined]) -> list[RankPlace]:
    """Return the place of each rank, with a GPU among those that the ranks of its machine see.

    Agents of one machine that see the same GPUs divide them; one with GPUs of its own has those.
    """
    used: defaultdict[tuple[str, ...], int] = defaultdict(int)
    places = []
    for agent in agents:
        visible = (agent.node_id, *(agent.devices or []))
        for _ in agent.ranks:
            device, used[visible] = used[visible], used[visible] + 1
            places.append(RankPlace(agent.node, agent.node_id, agent.target.host, device))
    return places


def check_versions(agents: Sequence[AgentJoined]) -> None:
    """Check that all machines have this version of quire.

    Raises:
        SettingsError: Some have not; all of them are named.
    """
    if others := [agent for agent in agents if agent.version != quire.__version__]:
        text = "; ".join(f"{agent} has quire {agent.version}" for agent in others)
        raise SettingsError(
            f"{text}, and the engine has quire {quire.__version__}; install the same version on "
            "all machines"
        )


def check_devices(agents: Sequence[AgentJoined]) -> None:
    """Check that each machine has a GPU for each of its ranks.

    Raises:
        CapacityError: Machines have fewer; all ranks without one are named.
    """
    too_few = []
    ranks = [(agent, rank) for agent in agents for rank in agent.ranks]
    for (agent, rank), place in zip(ranks, rank_places(agents), strict=True):
        number = len(agent.devices or [])
        if place.device >= number:
            too_few.append(f"rank {rank} on {agent.node}, where {number} are visible")
    if too_few:
        raise CapacityError(
            f"there is no GPU for {'; '.join(too_few)}; start fewer ranks there, or make more GPUs "
            "visible (CUDA_VISIBLE_DEVICES)"
        )


def _listening_hub(endpoint: str, key: LaunchKey) -> NetworkHub:
    """Return a hub that listens.

    Raises:
        SettingsError: It cannot listen at this address.
    """
    try:
        return NetworkHub(FromWorker | FromAgent, endpoint, key)
    except SettingsError:
        raise
    except QuireError as error:
        raise SettingsError(
            f"workers cannot join: {error}; set --worker-address to an address of this machine "
            "with a free port"
        ) from error


def _endpoint(settings: Settings, host: str | None) -> str:
    """Return the endpoint to listen on.

    Raises:
        SettingsError: No address is known, or it is none.
    """
    address = settings.parallel.worker_address or host
    if not address:
        raise SettingsError(
            f"executor {settings.parallel.executor!r} needs the address of this machine at which "
            "workers join: set --worker-address HOST or HOST:PORT"
        )
    return str(TcpAddress.parse_listening(address))


def _named(agents: Iterable[AgentJoined]) -> str:
    return "; ".join(map(str, agents)) or "none"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
