"""Steps of all ranks: every call reaches each rank, and every rank must answer in time."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from quire.errors import CauseError, StepFailedError
from quire.interfaces.executor import StepRunner, WorkerGrid
from quire.launch.workers.ranks.rank_link import RankLink
from quire.launch.workers.ranks.rank_links import RankLinks
from quire.launch.workers.ranks.step_results import RankResults
from quire.launch.workers.worker_wire import (
    Completed,
    Execute,
    Halt,
    Halted,
    Launch,
    Resume,
    Resumed,
    Returned,
    Run,
    Sample,
    StepFailed,
)
from quire.messages import RowBitmask, StepPlan, StepResult, WorkerControl
from quire.process.interrupts import Interrupts

FIRST_EPOCH = 1  # of the ranks' groups


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
        self._epoch = FIRST_EPOCH
        self._num_calls = 0
        self._interrupts = Interrupts()

    def execute(self, plan: StepPlan) -> None:
        """Launch the forward pass of a step on all ranks.

        Raises:
            EngineDeadError: A rank is dead.
        """
        self._links.activity = f"step {plan.plan_id}"
        self._links.send(Execute(plan))

    def launch(self, plan: StepPlan, masks: Sequence[RowBitmask] = ()) -> None:
        """Launch the forward pass and the sampling of a step on all ranks, with one message.

        Raises:
            EngineDeadError: A rank is dead.
        """
        self._links.activity = f"step {plan.plan_id}"
        self._links.send(Launch(plan, list(masks)))

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
            StepFailedError: A step in flight failed. All ranks have dropped all steps in flight,
                and are ready for others. They have received the transfers of every plan, and report
                them with later steps.
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
            EngineDeadError: A rank died, failed or was too late.
            StepFailedError: A step in flight failed.
            QuireError: A rank could not run it.
        """
        self._links.activity = f"the command {type(command).__name__}"
        self._num_calls += 1
        self._links.send(Run(self._num_calls, command))
        deadline = time.monotonic() + self._step_timeout_s
        returned: dict[int, Returned] = {}
        ranks = range(len(self._links.links))
        while late := [rank for rank in ranks if rank not in returned]:
            link, message = self._receive(deadline, late)
            if isinstance(message, Returned) and message.call_id == self._num_calls:
                returned[link.rank] = message
            else:
                self._take_completed((link, message))
        errors = [each.error for each in returned.values() if each.error is not None]
        if errors:
            raise errors[0].error()
        return returned[0].value

    def _receive(self, deadline: float, late: Sequence[int]) -> tuple[RankLink, Any]:
        received = self._links.receive(deadline)
        if received is None:
            links = [self._links.links[rank] for rank in late]
            self._links.end_late(links, self._step_timeout_s)
        return received

    def _take_completed(self, received: tuple[RankLink, Any]) -> None:
        link, message = received
        match message:
            case Completed():
                self._results.add(link.rank, message.result)
            case StepFailed():
                with self._interrupts:
                    self._recover(link, message)
            case Returned() if message.call_id <= self._num_calls:
                pass  # its caller was interrupted
            case _:
                self._links.end(f"{link} sent {message!r} unexpectedly")

    def _recover(self, link: RankLink, first: StepFailed) -> NoReturn:
        """Halt all ranks after a failed step, make them ready for others, and raise its error.

        Ctrl-C waits for that: ranks that stay halted compute nothing.

        A rank that failed because it waited for another one does not know the reason; so the
        reason is that of the first rank that does.

        Raises:
            StepFailedError: Always, unless the engine ends.
        """
        self._links.activity = f"stopping after step {first.plan_id}, which failed,"
        self._links.send(Halt())
        failures = {link.rank: first}
        halted: dict[int, Halted] = {}
        deadline = time.monotonic() + self._step_timeout_s
        ranks = range(len(self._links.links))
        while late := [rank for rank in ranks if rank not in halted]:
            link, message = self._receive(deadline, late)
            match message:
                case StepFailed():
                    failures[link.rank] = message
                case Halted():
                    halted[link.rank] = message
                case Completed():
                    self._results.add(link.rank, message.result)  # its transfers have ended
                case Returned():
                    pass  # of a command that is run again
                case _:
                    self._links.end(f"{link} sent {message!r} unexpectedly")
        self._results.drop()
        raise self._resumed(failures, all(each.can_resume for each in halted.values()))

    def _resumed(self, failures: Mapping[int, StepFailed], can_resume: bool) -> StepFailedError:
        """Make the halted ranks ready for other steps, and return the error of the failed one.

        Raises:
            EngineDeadError: No rank knows the reason, or the ranks cannot go on, or do not.
        """
        texts = {
            rank: f"{self._links.links[rank]}: {f.message}" for rank, f in sorted(failures.items())
        }
        own = {rank: f for rank, f in failures.items() if f.report is not None}
        was_waited_for = len(own) < len(self._links.links)
        if not own or (was_waited_for and not can_resume):
            self._links.end(
                f"a step failed, and the ranks cannot go on together: {'; '.join(texts.values())}"
            )
        self._epoch += 1
        self._links.send(Resume(self._epoch))
        self._links.gather(Resumed, self._step_timeout_s)
        rank, failure = min(own.items(), key=lambda item: (item[1].plan_id, item[0]))
        slots = {slot: report for each in own.values() for slot, report in each.slots.items()}
        report = failure.report or next(iter(slots.values()))
        error = StepFailedError(texts[rank], report=report, slots=slots, plan_id=failure.plan_id)
        error.__cause__ = None if report.cause is None else CauseError(report.cause)
        return error

    def _end_differing(self, plan_id: int, digests: dict[int, int]) -> None:
        found = ", ".join(f"rank {rank}: {digest:016x}" for rank, digest in digests.items())
        self._links.end(
            f"the ranks sampled different tokens in step {plan_id} (digests {found}); their "
            "collectives or random numbers differ, and completions would be wrong"
        )
