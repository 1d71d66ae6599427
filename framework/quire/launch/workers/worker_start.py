"""Placement of the workers by the executor, and the connection to their processes."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from quire.config import ServerSettings
from quire.errors import EngineDeadError, RefusedError
from quire.interfaces.executor import Worker, WorkerGrid, WorkerLaunch, WorkerProcess
from quire.launch.agreement import own_choices
from quire.launch.composing import Composed
from quire.launch.workers.local_process import LocalProcess
from quire.launch.workers.rank_link import RankLink
from quire.launch.workers.rank_links import RankLinks
from quire.launch.workers.worker_set import WorkerSet
from quire.launch.workers.worker_wire import FromWorker, WorkerConfig
from quire.process.child_process import SocketFolder
from quire.process.hub import Hub
from quire.process.ipc import encode


def start_workers(composed: Composed) -> Worker:
    """Make the executor place the workers, and wait until all have joined.

    Raises:
        QuireError: A worker cannot be started; all that were started are ended.
    """
    executor_class = composed.plugins.registries.executors.load(composed.composition.executor.entry)
    grid = composed.composition.grid
    with SocketFolder() as folder:
        launch = WorkerLaunch(
            grid=grid,
            make=lambda: _make_only_worker(composed),
            spawn=_spawner(composed, folder),
        )
        hub = Hub(FromWorker, folder.address)
        try:
            placed = executor_class().place(launch)
        except BaseException:
            hub.close()
            raise
        if isinstance(placed, Worker):
            hub.close()
            return placed
        return _joined(composed, hub, grid, placed)


def _joined(
    composed: Composed, hub: Hub, grid: WorkerGrid, placed: Sequence[WorkerProcess]
) -> WorkerSet:
    """Return the workers once all have joined and agree; on an error all are ended."""
    ranks = [RankLink(rank, grid, process) for rank, process in enumerate(placed)]
    links = RankLinks(hub, ranks)
    if len(ranks) != grid.size:
        links.close(EngineDeadError("the workers did not start"))
        raise RefusedError(
            f"{composed.composition.executor} placed {len(ranks)} workers, and {grid.size} are "
            "needed"
        )
    parallel = composed.settings.parallel
    workers = WorkerSet(
        links,
        grid,
        own_choices(composed.composition),
        start_timeout_s=parallel.worker_start_timeout_s,
        step_timeout_s=parallel.step_timeout_s,
    )
    try:
        workers.join()
    except BaseException:
        workers.shutdown()
        raise
    return workers


def _spawner(composed: Composed, folder: SocketFolder) -> Callable[[int], WorkerProcess]:
    settings = replace(composed.settings, server=ServerSettings())  # without the API key
    level = logging.getLogger("quire").getEffectiveLevel()

    def spawn(rank: int) -> WorkerProcess:
        config = WorkerConfig(settings=settings, address=folder.address, rank=rank, log_level=level)
        return LocalProcess([str(os.getpid()), str(folder.path)], encode(config))

    return spawn


def _make_only_worker(composed: Composed) -> Worker:
    """Build the worker of a grid of one in this process."""
    from quire.layers.parallel import SingleDevice  # loads torch
    from quire.worker.parts import WorkerParts
    from quire.worker.worker import ModelWorker

    parts = WorkerParts.load(composed.settings, composed.composition, composed.plugins.registries)
    return ModelWorker(composed.settings, parts, SingleDevice())
