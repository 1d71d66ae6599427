"""All ranks of a grid as one worker: they join, agree, load, and allocate the same plan."""

import logging
import socket
from collections.abc import Sequence
from typing import TypeVar

from quire.errors import EngineDeadError, PluginError
from quire.interfaces.executor import StepRunner, Worker, WorkerGrid
from quire.interfaces.kv_cache import KVPlan
from quire.launch.agreement import difference
from quire.launch.workers.ranks.rank_links import STOP_TIMEOUT_S, RankLinks
from quire.launch.workers.ranks.set_runner import SetRunner
from quire.launch.workers.worker_wire import Allocate, Allocated, Joined, Loaded, LoadWeights, Stop
from quire.messages import RankPlace, WorkerInfo

T = TypeVar("T")

logger = logging.getLogger(__name__)


class WorkerSet(Worker):
    """The worker processes of an engine.

    Args:
        links: Connections to the ranks, which may not have joined yet.
        grid: Grid of the ranks.
        choices: What this process chose, a line for each; every rank must have chosen the same.
        places: Place of each rank, in order.
        start_timeout_s: Time for all ranks to join, and for each phase of the start-up.
        step_timeout_s: Time for one step.
    """

    def __init__(
        self,
        links: RankLinks,
        grid: WorkerGrid,
        choices: Sequence[str],
        places: Sequence[RankPlace],
        *,
        start_timeout_s: float,
        step_timeout_s: float,
    ) -> None:
        self._links = links
        self._grid = grid
        self._choices = choices
        self._places = list(places)
        self._start_timeout_s = start_timeout_s
        self._step_timeout_s = step_timeout_s
        self._kv_bytes: list[int] = []

    def join(self) -> None:
        """Wait until every rank has joined, and compare what they chose.

        Raises:
            PluginError: Ranks chose other parts than this process; the message has all differences.
            EngineDeadError: A rank died or did not join in time.
        """
        found = self._links.gather(Joined, self._start_timeout_s)
        differing = {
            joined.rank: text
            for joined in found
            if (text := difference(self._choices, joined.choices, _names(joined))) is not None
        }
        if differing:
            text = "\n".join(differing.values())
            error = PluginError(
                f"{len(differing)} of {self._grid.size} workers chose other parts than the engine; "
                f"were packages installed or changed meanwhile, or on one machine only?\n{text}"
            )
            self._links.close(EngineDeadError(f"the workers did not start: {error}"))
            raise error
        logger.info("workers: %s", "; ".join(str(link) for link in self._links.links))

    def load(self) -> WorkerInfo:
        """Load the weights on all ranks."""
        loaded = self._run(LoadWeights(self._places), Loaded, "loading the weights")
        self._kv_bytes = [num_bytes for each in loaded for num_bytes in each.info.kv_bytes]
        return WorkerInfo(kv_bytes=self._kv_bytes, is_asynchronous=True)

    def allocate(self, plans: Sequence[KVPlan]) -> StepRunner:
        """Allocate the KV cache on all ranks; each plans by itself, and must get the same plan."""
        message = Allocate(self._kv_bytes)
        expected = Allocated(plans[0].num_blocks, plans[0].max_model_len)
        for rank, found in enumerate(self._run(message, Allocated, "allocating the KV cache")):
            if found != expected:
                link = self._links.links[rank]
                self._links.end(f"{link} planned another KV cache: {found} instead of {expected}")
        return SetRunner(self._links, self._grid, self._step_timeout_s)

    def check_health(self) -> None:
        """Check that all ranks are alive.

        Raises:
            EngineDeadError: A rank is dead or has failed, or the workers were shut down.
        """
        self._links.check()

    def shutdown(self) -> None:
        """Stop all ranks, and kill those that do not exit in time. May be called twice."""
        death = EngineDeadError("the workers were shut down")
        if not self._links.have_joined:  # as after Ctrl-C while they start
            self._links.close(death)
            return
        try:
            self._links.send(Stop())
        except EngineDeadError:
            return  # all were ended
        self._links.close(death, STOP_TIMEOUT_S)

    def _run(self, message: LoadWeights | Allocate, kind: type[T], what: str) -> list[T]:
        self._links.activity = what
        self._links.send(message)
        return self._links.gather(kind, self._start_timeout_s)


def _names(joined: Joined) -> tuple[str, str]:
    return (
        f"the engine on {socket.gethostname()}",
        f"rank {joined.rank}, process {joined.pid} on {joined.node}",
    )
