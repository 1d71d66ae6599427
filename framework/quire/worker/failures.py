"""Treatment of failures in a step: tried again by this worker alone, or reported to all workers.

A single worker tries each request alone, so that only those fail that cannot be computed. Where
several workers compute a step together, none may do so by itself: the others would wait in a
collective operation, or compute something else. Their failures end the step.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from quire.errors import CollectiveError, StepFailedError
from quire.messages import ErrorReport
from quire.worker.batch.step_results import failure
from quire.worker.device.device_faults import end_if_device_failed

BatchT = TypeVar("BatchT")
ResultT = TypeVar("ResultT")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchWork(Generic[BatchT, ResultT]):
    """Work of a step that can be done for a whole batch, or for each of its requests alone.

    Attributes:
        what: Name of the work, the subject of error messages.
        run: Function that does the work for a batch.
        slots_of: Function that returns the slots of a batch.
        split: Function that returns the batches that can be tried alone: one for each request, or
            for requests that need each other.
    """

    what: str
    run: Callable[[BatchT], ResultT]
    slots_of: Callable[[BatchT], Sequence[int]]
    split: Callable[[BatchT], Iterable[BatchT]]


class FailurePolicy(ABC):
    """What a worker does when work of a step fails."""

    @abstractmethod
    def run(
        self, work: BatchWork[BatchT, ResultT], batch: BatchT, errors: dict[int, ErrorReport]
    ) -> list[ResultT]:
        """Do the work for a batch, and return the results of what succeeded.

        Args:
            work: Work to do.
            batch: Batch to do it for.
            errors: Errors of slots; those that failed are added.
        """

    @abstractmethod
    def attempt(
        self, what: str, slots: Sequence[int], run: Callable[[], ResultT]
    ) -> ResultT | None:
        """Do work that can also be done in a slower way; None: it must be done in that way."""

    @abstractmethod
    def exclude(self, errors: Mapping[int, ErrorReport]) -> None:
        """Let the requests in some slots fail, and compute the step without them."""


class IsolateAlone(FailurePolicy):
    """Policy of a single worker: after a failure, each request is computed alone.

    Requests that need each other fail together.
    """

    def run(
        self, work: BatchWork[BatchT, ResultT], batch: BatchT, errors: dict[int, ErrorReport]
    ) -> list[ResultT]:
        """Do the work for all requests at once or, if that fails, for each alone."""
        try:
            return [work.run(batch)]
        except Exception as error:  # the edge of model, backend and sampler plugins
            end_if_device_failed(error)
            slots = work.slots_of(batch)
            logger.warning("%s failed for %d request(s)", work.what, len(slots), exc_info=True)
            parts = list(work.split(batch)) if len(slots) > 1 else []
            if len(parts) < 2:
                errors |= dict.fromkeys(slots, failure(work.what, error))
                return []
        return [done for part in parts for done in self.run(work, part, errors)]

    def attempt(
        self, what: str, slots: Sequence[int], run: Callable[[], ResultT]
    ) -> ResultT | None:
        """Do the work; if it fails, the error is reported once the slower way fails as well."""
        try:
            return run()
        except Exception as error:  # the edge of model, backend and sampler plugins
            end_if_device_failed(error)
            logger.warning(
                "%s of %d request(s) failed; it is computed eagerly",
                what,
                len(slots),
                exc_info=True,
            )
            return None

    def exclude(self, errors: Mapping[int, ErrorReport]) -> None:
        """Do nothing: the requests are left out by this worker alone."""


class ReportFailures(FailurePolicy):
    """Policy of one worker of several: a failure ends the step, and nothing is tried again."""

    def run(
        self, work: BatchWork[BatchT, ResultT], batch: BatchT, errors: dict[int, ErrorReport]
    ) -> list[ResultT]:
        """Do the work for all requests at once.

        Raises:
            StepFailedError: It failed.
            CollectiveError: Another worker did not take part.
        """
        del errors
        return [self.attempt(work.what, work.slots_of(batch), lambda: work.run(batch))]

    def attempt(self, what: str, slots: Sequence[int], run: Callable[[], ResultT]) -> ResultT:
        """Do the work.

        Raises:
            StepFailedError: It failed.
            CollectiveError: Another worker did not take part.
        """
        try:
            return run()
        except CollectiveError:
            raise
        except Exception as error:  # the edge of model, backend and sampler plugins
            end_if_device_failed(error)
            report = failure(what, error)
            known = {slots[0]: report} if len(slots) == 1 else {}
            raise StepFailedError(report.message, report=report, slots=known) from error

    def exclude(self, errors: Mapping[int, ErrorReport]) -> None:
        """End the step if the requests in some slots must fail.

        Raises:
            StepFailedError: There are such slots.
        """
        for report in errors.values():
            raise StepFailedError(report.message, report=report, slots=errors)
