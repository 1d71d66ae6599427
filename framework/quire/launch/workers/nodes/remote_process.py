"""Process of a rank on another machine, by its agent."""

from quire.interfaces.executor import WorkerProcess
from quire.launch.workers.nodes.node_agents import NodeAgents

KILL_TIMEOUT_S = 5.0  # time for an agent to report the end of a rank that it killed


class RemoteProcess(WorkerProcess):
    """The process of a rank that an agent has started.

    Args:
        rank: The rank.
        agents: Agents of the launch.
    """

    def __init__(self, rank: int, agents: NodeAgents) -> None:
        self.node = agents.of_rank(rank).node
        self.rank = rank
        self._agents = agents

    @property
    def pid(self) -> int | None:  # type: ignore[override]
        """Process id on its machine; None until it is started."""
        return self._agents.pids.get(self.rank)

    def fileno(self) -> int | None:
        """Return None: the agent reports the end."""
        return None

    def kill(self) -> None:
        """Make the agent kill the process."""
        self._agents.kill(self.rank)

    def end(self, timeout_s: float) -> str:
        """Wait for the process to exit, then make the agent kill it."""
        if (how := self._agents.wait_end(self.rank, timeout_s)) is None:
            self.kill()
            how = self._agents.wait_end(self.rank, KILL_TIMEOUT_S)
        return how or f"is not reported as ended by {self._agents.of_rank(self.rank)}"

    def state(self, stack_fd: int | None) -> str:
        """Ask the agent what the process is doing."""
        return self._agents.state(self.rank, stack_fd)
