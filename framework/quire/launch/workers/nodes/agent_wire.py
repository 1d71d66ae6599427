"""Messages between the engine and the agents of machines.

engine -> agent    Probe, StartRanks; then DescribeRank and KillRank; EngineEnded says why all is
                   about to end; AgentRefused ends the agent
agent -> engine    AgentJoined first; Probed; RankStarted; then RankEnded once for each rank, and
                   RankState; AgentFailed before it ends because of an error
"""

import msgspec

from quire.config import Settings
from quire.launch.workers.nodes.own_ranks import ranks_text
from quire.launch.workers.nodes.reachability import ProbeTarget
from quire.process.error_message import ErrorMessage


class AgentJoined(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An agent has connected, and is ready to start its ranks.

    An agent of another version must still be understood, to be named: fields are only added, at
    the end, and with a default.

    Attributes:
        version: Version of quire.
        node: Name of its machine.
        node_id: Id of its machine: ranks with the same id can share memory.
        pid: Process id there.
        first_rank: First of its ranks, which are consecutive.
        num_ranks: Number of its ranks.
        target: Address at which its ranks listen for others, and it for probes.
        devices: UUIDs of the GPUs that its ranks see; None if they are not known.
    """

    version: str
    node: str
    node_id: str = ""
    pid: int = 0
    first_rank: int = 0
    num_ranks: int = 1
    target: ProbeTarget = ProbeTarget("", 0, b"")
    devices: list[str] | None = None

    @property
    def ranks(self) -> range:
        """Its ranks."""
        return range(self.first_rank, self.first_rank + self.num_ranks)

    def __str__(self) -> str:
        """Return the agent's name for people."""
        ranks = ranks_text(self.ranks)
        return f"{ranks} on {self.node} ({self.target.host}, agent process {self.pid})"


class Probe(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Try to reach the addresses of other machines, and answer `Probed`."""

    targets: list[ProbeTarget]


class Probed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Reason for each target why it cannot be reached, or None, in their order."""

    reasons: list[str | None]


class StartRanks(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Start the processes of the agent's ranks, which connect to the engine by themselves.

    Attributes:
        settings: Settings as given by the user, without the server's.
        log_level: Log level of the engine.
    """

    settings: Settings
    log_level: int


class RankStarted(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The process of a rank is started."""

    rank: int
    pid: int


class RankEnded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The process of a rank has ended.

    Attributes:
        rank: The rank.
        how: Description of its end: "was killed by SIGKILL".
    """

    rank: int
    how: str


class DescribeRank(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answer with what a rank is doing.

    Attributes:
        rank: The rank.
        stack_fd: File descriptor to which it writes its stack; None if it is not known.
    """

    rank: int
    stack_fd: int | None


class RankState(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Description of what a rank is doing."""

    rank: int
    text: str


class KillRank(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Kill the process of a rank."""

    rank: int


class EngineEnded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine is about to end all ranks."""

    reason: str


class AgentRefused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The engine does not take this agent, which ends with the error."""

    error: ErrorMessage


class AgentFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The agent ends, and its ranks with it."""

    error: ErrorMessage


ToAgent = Probe | StartRanks | DescribeRank | KillRank | EngineEnded | AgentRefused
FromAgent = AgentJoined | Probed | RankStarted | RankEnded | RankState | AgentFailed
