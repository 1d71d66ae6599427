"""Placement of the workers by the executor, and the connection to their processes."""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache

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
    with ExitStack() as stack:  # a worker in this process needs no socket

        @cache
        def folder() -> SocketFolder:
            return stack.enter_context(SocketFolder())

        launch = WorkerLaunch(
            grid=grid,
            make=lambda: _make_only_worker(composed),
            spawn=lambda rank: _spawn(composed, folder(), rank),
        )
        placed = executor_class().place(launch)
        if isinstance(placed, Worker):
            return placed
        try:
            hub = Hub(FromWorker, folder().address)  # the processes connect once it listens
        except BaseException:
            for process in placed:
                process.end(0.0)
            raise
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


def _spawn(composed: Composed, folder: SocketFolder, rank: int) -> WorkerProcess:
    """Start the process of a rank, which connects to the hub in a folder."""
    config = WorkerConfig(
        settings=replace(composed.settings, server=ServerSettings()),  # without the API key
        address=folder.address,
        rank=rank,
        log_level=logging.getLogger("quire").getEffectiveLevel(),
    )
    return LocalProcess([str(os.getpid()), str(folder.path)], encode(config))


def _make_only_worker(composed: Composed) -> Worker:
    """Build the worker of a grid of one in this process."""
    from quire.layers.parallel import SingleDevice  # loads torch
    from quire.worker.parts import WorkerParts
    from quire.worker.worker import ModelWorker

    parts = WorkerParts.load(composed.settings, composed.composition, composed.plugins.registries)
    return ModelWorker(composed.settings, parts, SingleDevice())
