"""Placement of the workers by the executor, and the connection to their processes.

What only processes need is imported with the first of them, because most engines have their worker
in this process.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from quire.compose.sizes.weight_bytes import weight_bytes
from quire.interfaces.executor import (
    HelperProcess,
    JoinPoint,
    Worker,
    WorkerLaunch,
    WorkerProcess,
)
from quire.launch.composing import Composed
from quire.machine.free_memory import free_host_bytes
from quire.machine.pages import WEIGHT_PAGES

if TYPE_CHECKING:
    from quire.launch.workers.placing.ports import Ports

WEIGHT_SLACK_BYTES = 2**26  # for ends of pieces that the next weight does not fit into


def start_workers(composed: Composed) -> Worker:
    """Make the executor place the workers, and wait until all have joined.

    Raises:
        QuireError: A worker cannot be started; all that were started are ended.
    """
    executor_class = composed.plugins.registries.executors.load(composed.composition.executor.entry)
    with ExitStack() as stack:  # a worker in this process needs no socket
        placing = _Placing(composed, stack)
        launch = WorkerLaunch(
            grid=composed.composition.grid,
            make=lambda: _make_only_worker(composed),
            spawn=placing.spawn,
            listen=placing.listen,
            start_helper=_start_helper,
            needs_gpus=composed.composition.device == "cuda",
            num_threads=composed.settings.model.threads,
            start_timeout_s=composed.settings.parallel.worker_start_timeout_s,
        )
        try:
            placed = executor_class().place(launch)
        except BaseException:
            placing.close()
            raise
        if isinstance(placed, Worker):
            return placed
        return placing.joined(placed)


class _Placing:
    """Placement of workers with processes of their own.

    Args:
        composed: Composition of the engine.
        stack: Block in which the workers start.
    """

    def __init__(self, composed: Composed, stack: ExitStack) -> None:
        self._composed = composed
        self._stack = stack

    @cached_property
    def ports(self) -> "Ports":
        """Sockets at which the ranks connect."""
        from quire.launch.workers.placing.ports import Ports

        return Ports(self._composed, self._stack)

    def spawn(self, rank: int) -> WorkerProcess:
        """Start the process of a rank on this machine."""
        from quire.launch.workers.placing.ports import spawn

        return spawn(self._composed, self.ports, rank)

    def listen(self, host: str | None) -> JoinPoint:
        """Open the port for ranks on other machines."""
        return self.ports.listen(host)

    def close(self) -> None:
        """Close the sockets that were opened."""
        if "ports" in vars(self):
            self.ports.close()

    def joined(self, placed: Sequence[WorkerProcess]) -> Worker:
        """Return the workers once all have joined and agree."""
        from quire.launch.workers.placing.ports import joined

        return joined(self._composed, self.ports, placed)


def _start_helper(module: str) -> HelperProcess:
    from quire.launch.workers.placing.helper_process import LocalHelper

    return LocalHelper(module)


def _make_only_worker(composed: Composed) -> Worker:
    """Build the worker of a grid of one in this process."""
    _prepare_weight_pages(composed)
    try:
        from quire.layers.parallel import SingleDevice  # loads torch
        from quire.worker.parts import WorkerParts
        from quire.worker.worker import ModelWorker

        registries = composed.plugins.registries
        parts = WorkerParts.load(composed.settings, composed.composition, registries)
        return ModelWorker(composed.settings, parts, SingleDevice())
    except BaseException:
        WEIGHT_PAGES.close()
        raise


def _prepare_weight_pages(composed: Composed) -> None:
    """Let the system allocate the pages of packed weights while torch is imported."""
    composition = composed.composition
    method = composition.quantization.value
    if method is None or not method.entry.capabilities.uses_weight_pages:
        return
    num_bytes = weight_bytes(composition, composition.grid.tp_size) + WEIGHT_SLACK_BYTES
    if num_bytes < free_host_bytes():
        WEIGHT_PAGES.prepare(num_bytes)
