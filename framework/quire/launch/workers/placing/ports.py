"""Sockets at which the processes of ranks connect, and the workers once all have joined."""

import logging
import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property

from quire.config import ServerSettings
from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import JoinPoint, WorkerGrid, WorkerProcess
from quire.launch.agreement import own_choices
from quire.launch.composing import Composed
from quire.launch.workers.nodes.join_point import TcpJoinPoint
from quire.launch.workers.placing.local_process import LocalProcess
from quire.launch.workers.ranks.rank_link import RankLink
from quire.launch.workers.ranks.rank_links import RankLinks
from quire.launch.workers.ranks.worker_set import WorkerSet
from quire.launch.workers.worker_wire import FromWorker, WorkerConfig
from quire.machine.node_identity import node_id
from quire.messages import RankPlace
from quire.process.children.child_process import SocketFolder
from quire.process.ipc import encode
from quire.process.local.local_hub import LocalHub

LOOPBACK = "127.0.0.1"


class Ports:
    """Sockets at which the ranks connect: one in a folder on this machine, or a port.

    Args:
        composed: Composition of the engine.
        stack: Block in which the workers start; its end removes the folder.

    Attributes:
        point: Port for ranks on other machines, if the executor has asked for one.
    """

    def __init__(self, composed: Composed, stack: ExitStack) -> None:
        self.point: TcpJoinPoint | None = None
        self._composed = composed
        self._stack = stack
        self._hub: LocalHub | None = None

    @cached_property
    def folder(self) -> SocketFolder:
        """Folder of the socket for ranks on this machine."""
        return self._stack.enter_context(SocketFolder())

    @property
    def hub(self) -> LocalHub:
        """Hub for ranks on this machine, which listens in the folder."""
        if self._hub is None:
            self._hub = LocalHub(FromWorker, self.folder.address)
        return self._hub

    def listen(self, host: str | None) -> JoinPoint:
        """Open the port for ranks on other machines.

        Raises:
            SettingsError: No address is known, or nothing can listen there.
        """
        if self.point is None:
            composition, settings = self._composed.composition, self._composed.settings
            self.point = TcpJoinPoint(
                settings, composition.grid, host, needs_gpus=composition.device == "cuda"
            )
            self._stack.callback(self.point.remove_key)
        return self.point

    def links(self, grid: WorkerGrid, placed: Sequence[WorkerProcess]) -> RankLinks:
        """Return the connections to the processes that were placed."""
        ranks = [RankLink(rank, grid, process) for rank, process in enumerate(placed)]
        if self.point is not None:
            return RankLinks(self.point.hub, ranks, self.point.agents)
        return RankLinks(self.hub, ranks)

    def close(self) -> None:
        """Close the sockets."""
        if self.point is not None:
            self.point.close()
        if self._hub is not None:
            self._hub.close()


def joined(composed: Composed, ports: Ports, placed: Sequence[WorkerProcess]) -> WorkerSet:
    """Return the workers once all have joined and agree; on an error all are ended."""
    grid = composed.composition.grid
    try:
        links = ports.links(grid, placed)
    except BaseException:
        for process in placed:
            process.end(0.0)
        raise
    if len(placed) != grid.size:
        links.close(EngineDeadError("the workers did not start"))
        raise RefusedError(
            f"{composed.composition.executor} placed {len(placed)} workers, and {grid.size} are "
            "needed"
        )
    parallel = composed.settings.parallel
    point = ports.point
    workers = WorkerSet(
        links,
        grid,
        own_choices(composed.composition, is_local=point is None),
        _places_here(grid) if point is None else point.places,
        start_timeout_s=parallel.worker_start_timeout_s,
        step_timeout_s=parallel.step_timeout_s,
    )
    try:
        workers.join()
    except BaseException:
        workers.shutdown()
        raise
    if point is not None:
        point.hub.stop_listening()
    return workers


def _places_here(grid: WorkerGrid) -> list[RankPlace]:
    """Return the places of ranks that all are children of this process."""
    node = socket.gethostname()
    return [RankPlace(node, node_id(), LOOPBACK, rank) for rank in range(grid.size)]


def spawn(composed: Composed, ports: Ports, rank: int) -> WorkerProcess:
    """Start the process of a rank, which connects to the hub on this machine."""
    config = WorkerConfig(
        settings=replace(composed.settings, server=ServerSettings()),  # without the API key
        address=ports.hub.address,
        rank=rank,
        log_level=logging.getLogger("quire").getEffectiveLevel(),
    )
    return LocalProcess([str(os.getpid()), str(ports.folder.path)], encode(config))
