"""Steps of all ranks: every call reaches each rank, and every rank must answer in time."""

import time
from collections.abc import Sequence
from typing import Any

from quire.interfaces.executor import StepRunner, WorkerGrid
from quire.launch.workers.rank_link import RankLink
from quire.launch.workers.rank_links import RankLinks
from quire.launch.workers.step_results import RankResults
from quire.launch.workers.worker_wire import Completed, Execute, Returned, Run, Sample
from quire.messages import RowBitmask, StepPlan, StepResult, WorkerControl


class SetRunner(StepRunner):
    """Runs steps on all ranks of a grid.

    Args:
        links: Connections to the ranks.
        grid: Grid of the ranks.
        step_timeout_s: Time for one step, from when it is the oldest in flight.
    """

    def __init__(self, links: RankLinks, grid: WorkerGrid, step_timeout_s: float) -> None:
        self._links = links
        self._results = RankResults(grid)
        self._step_timeout_s = step_timeout_s

    def execute(self, plan: StepPlan) -> None:
        """Launch the forward pass of a step on all ranks.

        Raises:
            EngineDeadError: A rank is dead.
        """
        self._links.activity = f"step {plan.plan_id}"
        self._links.send(Execute(plan))

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> None:
        """Launch the sampling of a step.

        Raises:
            EngineDeadError: A rank is dead.
        """
        self._links.send(Sample(plan_id, list(masks)))

    def collect(self, plan_id: int) -> StepResult:
        """Wait until every rank has completed a step.

        Raises:
            EngineDeadError: A rank died, failed or was too late, or the ranks sampled different
                tokens.
        """
        deadline = time.monotonic() + self._step_timeout_s
        while late := self._results.missing(plan_id):
            self._take_completed(self._receive(deadline, late))
        if digests := self._results.differing(plan_id):
            self._end_differing(plan_id, digests)
        return self._results.pop(plan_id)

    def control(self, command: WorkerControl) -> Any:
        """Run a command on all ranks, and return the result of rank 0.

        Raises:
            EngineDeadError: A rank died, failed or was too late, or only some ranks could run it.
            QuireError: No rank could run it.
        """
        self._links.activity = f"the command {type(command).__name__}"
        self._links.send(Run(command))
        deadline = time.monotonic() + self._step_timeout_s
        returned: dict[int, Returned] = {}
        ranks = range(len(self._links.links))
        while late := [rank for rank in ranks if rank not in returned]:
            link, message = self._receive(deadline, late)
            if isinstance(message, Returned):
                returned[link.rank] = message
            else:
                self._take_completed((link, message))
        return self._agreed(returned)

    def _agreed(self, returned: dict[int, Returned]) -> Any:
        """Return the result of rank 0, or raise the error of all ranks."""
        errors = {rank: each.error for rank, each in returned.items() if each.error is not None}
        if not errors:
            return returned[0].value
        rank, error = next(iter(errors.items()))
        if len(errors) < len(returned):
            self._links.end(
                f"{self._links.links[rank]} failed where others did not: {error.message}"
            )
        raise error.error()

    def _receive(self, deadline: float, late: Sequence[int]) -> tuple[RankLink, Any]:
        received = self._links.receive(deadline)
        if received is None:
            links = [self._links.links[rank] for rank in late]
            self._links.end_late(links, self._step_timeout_s)
        return received

    def _take_completed(self, received: tuple[RankLink, Any]) -> None:
        link, message = received
        if not isinstance(message, Completed):
            self._links.end(f"{link} sent {message!r} unexpectedly")
        self._results.add(link.rank, message.result)

    def _end_differing(self, plan_id: int, digests: dict[int, int]) -> None:
        found = ", ".join(f"rank {rank}: {digest:016x}" for rank, digest in digests.items())
        self._links.end(
            f"the ranks sampled different tokens in step {plan_id} (digests {found}); their "
            "collectives or random numbers differ, and completions would be wrong"
        )
