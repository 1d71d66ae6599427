"""The frontend knows the engine by a few verbs, in this process or in another one."""

from collections.abc import Callable, Sequence
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
    RequestError,
    RequestFailedError,
    RequestTimeoutError,
    UnknownModelError,
)
from quire.messages import Control, EngineOutputs, EngineRequest, EngineStats, ErrorReport


class EngineCoreClient(Protocol):
    """An engine core. One thread calls it, but for `wake` and `kill`."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request; one that cannot be served is answered with an error by `step`.

        Raises:
            InvalidRequestError: A request with this id is not over yet.
        """

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests; ids that are not known are none of its business."""

    def step(self) -> EngineOutputs | None:
        """Run one step; return what it added to each request.

        Returns:
            None if `wake` was called before a step that runs elsewhere has ended.

        Raises:
            EngineDeadError: The engine cannot go on.
        """

    def wake(self) -> None:
        """Let a `step` return that only waits for another process; from any thread."""

    def kill(self) -> bool:
        """Let no verb wait any longer for another process, which dies by it; from any thread.

        Returns:
            Whether there is another process.
        """

    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def control(self, command: Control) -> Any:
        """Do something between two steps; the answer is the one that the command names."""

    def stats(self) -> EngineStats:
        """Return a few numbers about now."""

    def check_health(self) -> None:
        """Return if the engine lives; for one that is idle, as steps find out by themselves.

        Raises:
            EngineDeadError: It does not.
        """

    def shutdown(self) -> None:
        """Give everything back. May be called twice."""


# What a client can do something about. Whatever else fails in the engine is its own fault.
_ERRORS: dict[str, Callable[[str], RequestError]] = {
    InvalidRequestError.code: InvalidRequestError,
    PromptTooLongError.code: PromptTooLongError,
    CapacityError.code: PromptTooLongError,  # prompt and answer can never fit the KV cache
    GrammarError.code: GrammarError,
    ChatTemplateError.code: ChatTemplateError,
    UnknownModelError.code: UnknownModelError,
    AdapterError.code: InvalidRequestError,
    OverloadedError.code: OverloadedError,
    RequestTimeoutError.code: RequestTimeoutError,
}


def death_by(error: BaseException) -> EngineDeadError:
    """Return what to tell of an engine that died by an error; the error is its cause."""
    if isinstance(error, EngineDeadError):
        return error
    death = EngineDeadError(f"the engine died: {type(error).__name__}: {error}")
    death.__cause__ = error
    return death


def error_of(report: ErrorReport) -> RequestError:
    """Return the exception for an error that came out of the engine, with what caused it."""
    error = _ERRORS.get(report.code, RequestFailedError)(report.message)
    error.__cause__ = None if report.cause is None else CauseError(report.cause)
    return error
