"""The frontend knows the engine by six verbs, in this process or in another one."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from quire.errors import (
    AdapterError,
    CapacityError,
    ChatTemplateError,
    GrammarError,
    InvalidRequestError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    RequestFailedError,
    UnknownModelError,
)
from quire.messages import EngineOutputs, EngineRequest, ErrorReport


class EngineCoreClient(Protocol):
    """An engine core. One thread calls it."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request; one that cannot be served is answered with an error by `step`."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests; ids that are not known are none of its business."""

    def step(self) -> EngineOutputs:
        """Run one step; return what it added to each request.

        Raises:
            EngineDeadError: The engine cannot go on.
        """

    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def control(self, name: str, argument: Any = None) -> Any:
        """Do something besides steps."""

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
}


def error_of(report: ErrorReport) -> RequestError:
    """Return the exception for an error that came out of the engine."""
    return _ERRORS.get(report.code, RequestFailedError)(report.message)
