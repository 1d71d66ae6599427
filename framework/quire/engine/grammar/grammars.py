"""What the engine asks of whoever holds the grammars of its requests; and nobody, who has none."""

from collections.abc import Sequence
from typing import Protocol

from quire.errors import GrammarError, RequestError
from quire.messages import RowBitmask
from quire.sampling_params import StructuredOutputsParams


class Grammars(Protocol):
    """What the engine asks of the process that holds the grammars."""

    def submit(
        self, request_id: str, params: StructuredOutputsParams, *, is_active: bool = True
    ) -> None:
        """Begin to compile a request's grammar; it begins at once, or when it is activated."""

    def activate(self, request_id: str) -> None:
        """Let the grammar begin with the next token."""

    def poll(self) -> list[tuple[str, RequestError | None]]:
        """Return the requests whose grammar is ready, and those whose grammar failed."""

    def wait_for_compile(self, timeout_s: float) -> bool:
        """Block until `poll` may have something to say, or the time is up."""

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Tell the grammar which tokens were drawn."""

    def request_masks(self, rows: Sequence[tuple[int, str]]) -> None:
        """Begin to fill the masks of a step, for pairs of slot and request."""

    def collect_masks(self) -> list[RowBitmask]:
        """Return the masks that were asked for."""

    def release(self, request_id: str) -> None:
        """Forget a request."""

    def shutdown(self) -> None:
        """End the process. May be called twice."""


class NoGrammars:
    """Structured output is off: every grammar is refused, with the way out."""

    def __init__(self) -> None:
        self._refused: list[str] = []

    def submit(
        self, request_id: str, params: StructuredOutputsParams, *, is_active: bool = True
    ) -> None:
        """Note the request, to be refused."""
        del params, is_active
        self._refused.append(request_id)

    def activate(self, request_id: str) -> None:
        """Nothing was ever admitted."""

    def poll(self) -> list[tuple[str, RequestError | None]]:
        """Refuse what was submitted."""
        refused, self._refused = self._refused, []
        error = GrammarError("structured output is off; start with --structured-output NAME")
        return [(request_id, error) for request_id in refused]

    def wait_for_compile(self, timeout_s: float) -> bool:
        """Return at once: nothing compiles."""
        del timeout_s
        return bool(self._refused)

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Nothing was ever admitted."""

    def request_masks(self, rows: Sequence[tuple[int, str]]) -> None:
        """Nothing was ever admitted."""

    def collect_masks(self) -> list[RowBitmask]:
        """Return no masks."""
        return []

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self._refused = [other for other in self._refused if other != request_id]

    def shutdown(self) -> None:
        """Nothing to stop."""
