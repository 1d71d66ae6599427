"""Interface between the engine and the grammars of its requests, and its null implementation."""

from collections.abc import Sequence
from typing import Protocol

from quire.errors import GrammarError, RequestError
from quire.messages import RowBitmask
from quire.sampling_params import StructuredOutputsParams


class Grammars(Protocol):
    """Grammars of the engine's requests."""

    def submit(
        self,
        request_id: str,
        params: StructuredOutputsParams,
        *,
        is_active: bool = True,
        client: str = "",
    ) -> None:
        """Start to compile a request's grammar; if not active, `activate` must be called."""

    def activate(self, request_id: str) -> None:
        """Apply the grammar from the next token on."""

    def poll(self) -> list[tuple[str, RequestError | None]]:
        """Return the requests whose grammar is ready, and those whose grammar failed."""

    def wait_for_compile(self, timeout_s: float) -> bool:
        """Block until `poll` has something to report, or the timeout."""

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Pass sampled tokens to the grammar."""

    def request_masks(self, rows: Sequence[tuple[int, str]]) -> None:
        """Start to fill the masks of a step, for pairs of slot and request id."""

    def collect_masks(self) -> list[RowBitmask]:
        """Return the requested masks."""

    def release(self, request_id: str) -> None:
        """Remove a request."""

    def shutdown(self) -> None:
        """End all grammar processes. May be called twice."""


class NoGrammars:
    """Grammars of an engine without structured output: every grammar is rejected."""

    def __init__(self) -> None:
        self._refused: list[str] = []

    def submit(
        self,
        request_id: str,
        params: StructuredOutputsParams,
        *,
        is_active: bool = True,
        client: str = "",
    ) -> None:
        """Record the request, to be rejected."""
        del params, is_active, client
        self._refused.append(request_id)

    def activate(self, request_id: str) -> None:
        """Do nothing: no request is admitted."""

    def poll(self) -> list[tuple[str, RequestError | None]]:
        """Reject the submitted requests."""
        refused, self._refused = self._refused, []
        error = GrammarError("structured output is off; start with --structured-output NAME")
        return [(request_id, error) for request_id in refused]

    def wait_for_compile(self, timeout_s: float) -> bool:
        """Return at once: nothing compiles."""
        del timeout_s
        return bool(self._refused)

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Do nothing: no request is admitted."""

    def request_masks(self, rows: Sequence[tuple[int, str]]) -> None:
        """Do nothing: no request is admitted."""

    def collect_masks(self) -> list[RowBitmask]:
        """Return no masks."""
        return []

    def release(self, request_id: str) -> None:
        """Remove a request."""
        self._refused = [other for other in self._refused if other != request_id]

    def shutdown(self) -> None:
        """Do nothing."""
