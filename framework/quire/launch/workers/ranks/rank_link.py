"""One rank as the engine sees it: its process, and the reason when it ends or hangs."""

from quire.interfaces.executor import WorkerGrid, WorkerProcess
from quire.launch.workers.worker_wire import Joined
from quire.process.hub import Peer


class RankLink:
    """Connection to the process of one rank.

    Args:
        rank: Rank of the worker.
        grid: Grid of all ranks.
        process: Process that the executor has placed.

    Attributes:
        peer: Id of the process at the hub; None until it has joined.
        joined: What the process said of itself; None until it has joined.
    """

    def __init__(self, rank: int, grid: WorkerGrid, process: WorkerProcess) -> None:
        self.rank = rank
        self.process = process
        self.stage, self.tp_rank = grid.place(rank)
        self.joined: Joined | None = None
        self.peer: Peer | None = None
        self._grid = grid

    def __str__(self) -> str:
        """Return the name of the rank for people, with its process and machine if known."""
        role = []
        if self._grid.tp_size > 1:
            role.append(f"tensor-parallel rank {self.tp_rank}")
        if self._grid.pp_size > 1:
            role.append(f"stage {self.stage}")
        if (pid := self.pid) is not None:
            role.append(f"process {pid}")
        role.append(f"on {self.node}")
        return f"worker {self.rank} of {self._grid.size} ({', '.join(role)})"

    @property
    def pid(self) -> int | None:
        """Process id on its machine; None if it is not known."""
        return self.process.pid if self.joined is None else self.joined.pid

    @property
    def node(self) -> str:
        """Name of the machine of the rank."""
        return self.process.node if self.joined is None else self.joined.node

    def state(self) -> str:
        """Describe what a process that does not answer is doing, for people."""
        return self.process.state(None if self.joined is None else self.joined.stack_fd)
