"""The interface of an engine core, in this process or in another one, and its errors."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from quire.errors import (
    AdapterError,
    CapacityError,
    CauseError,
    ChatTemplateError,
    EngineDeadError,
    GrammarError,
    InvalidRequestError,
    OverloadedError,
    PromptTooLongError,
    QuireError,
    ReplicaDeadError,
    RequestError,
    RequestFailedError,
    RequestTimeoutError,
    UnknownFieldError,
    UnknownModelError,
)
from quire.messages import Control, EngineOutputs, EngineRequest, EngineStats, ErrorReport

logger = logging.getLogger(__name__)


class EngineCoreClient(Protocol):
    """An engine core. One thread calls it, except for `wake` and `kill`."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request; if it cannot be served, `step` returns an error for it.

        Raises:
            InvalidRequestError: A request with this id has not finished yet.
        """

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; unknown ids are ignored."""

    def step(self) -> EngineOutputs | None:
        """Run one step; return the outputs of all requests.

        Returns:
            None if `wake` was called before a step in another process completed.

        Raises:
            EngineDeadError: The engine has failed.
        """

    def wake(self) -> None:
        """Make a `step` that waits for another process return; from any thread."""

    def kill(self) -> bool:
        """Kill the engine's process, if it has its own, so that no call waits; from any thread.

        Returns:
            Whether the engine has its own process.
        """

    def has_work(self) -> bool:
        """Return whether a step would do anything."""

    def control(self, command: Control) -> Any:
        """Run a command between two steps; return the result that the command documents."""

    def begin_control(self, command: Control) -> Future[Any]:
        """Run a command as `control` does, or begin to, if steps can complete it.

        Returns:
            The result, or the error of the command; `has_work` is true until it is there.

        Raises:
            EngineDeadError: The engine is dead.
        """

    def stats(self) -> EngineStats:
        """Return the current statistics."""

    def check_health(self) -> None:
        """Raise an error if the engine is dead; for an idle engine, since `step` checks itself.

        Raises:
            EngineDeadError: The engine is dead.
        """

    def shutdown(self) -> None:
        """Release all resources. May be called twice."""


# Errors that a client can act on. All others are failures of the engine.
_ERRORS: dict[str, Callable[[str], RequestError]] = {
    InvalidRequestError.code: InvalidRequestError,
    PromptTooLongError.code: PromptTooLongError,
    CapacityError.code: PromptTooLongError,  # prompt and completion can never fit the KV cache
    GrammarError.code: GrammarError,
    ChatTemplateError.code: ChatTemplateError,
    UnknownModelError.code: UnknownModelError,
    AdapterError.code: InvalidRequestError,
    OverloadedError.code: OverloadedError,
    RequestTimeoutError.code: RequestTimeoutError,
    ReplicaDeadError.code: ReplicaDeadError,
    UnknownFieldError.code: UnknownFieldError,
}


def death_by(error: BaseException) -> EngineDeadError:
    """Return the EngineDeadError for an error that the engine died of, which is its cause."""
    if isinstance(error, EngineDeadError):
        return error
    death = EngineDeadError(f"the engine died: {type(error).__name__}: {error}")
    death.__cause__ = error
    return death


def error_of(report: ErrorReport) -> RequestError:
    """Return the exception for an error report of the engine, with its cause."""
    error = _ERRORS.get(report.code, RequestFailedError)(report.message)
    if isinstance(error, OverloadedError):
        error.retry_after_s = report.retry_after_s
    error.__cause__ = None if report.cause is None else CauseError(report.cause)
    return error


def failure_of(error: Exception, request: str) -> QuireError:
    """Return the error that ends a request whose output could not be applied.

    Any error but a `QuireError` is a defect, which must end this request only: it is logged, and
    becomes the cause of the returned error.

    Args:
        error: Error that was raised.
        request: Words for the request in the log.
    """
    if isinstance(error, QuireError):
        return error
    logger.error("the completion of %s could not be turned into text", request, exc_info=error)
    failure = RequestFailedError("the completion could not be decoded; see the log")
    failure.__cause__ = error
    return failure
