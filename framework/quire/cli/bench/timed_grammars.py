"""Grammars of an engine that time the masks of each step, for benchmarks."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from quire.engine.grammar.grammars import Grammars
from quire.errors import RequestError
from quire.messages import RowBitmask
from quire.sampling_params import StructuredOutputsParams


class MaskTimes(NamedTuple):
    """Time that masks add to one step, in milliseconds.

    Attributes:
        sending: Time of the request for masks, before the forward pass.
        collecting: Time that the masks are waited for and read, after it.
    """

    sending: float
    collecting: float


class TimedGrammars:
    """Other grammars, and the times of the steps with masks.

    Attributes:
        times: Times of each step since the list was last emptied.
    """

    def __init__(self, grammars: Grammars) -> None:
        self.times: list[MaskTimes] = []
        self._grammars = grammars
        self._sending_ms = 0.0

    def submit(
        self,
        request_id: str,
        params: StructuredOutputsParams,
        *,
        is_active: bool = True,
        client: str = "",
    ) -> None:
        """Pass on."""
        self._grammars.submit(request_id, params, is_active=is_active, client=client)

    def activate(self, request_id: str) -> None:
        """Pass on."""
        self._grammars.activate(request_id)

    def poll(self) -> list[tuple[str, RequestError | None]]:
        """Pass on."""
        return self._grammars.poll()

    def wait_for_compile(self, timeout_s: float) -> bool:
        """Pass on."""
        return self._grammars.wait_for_compile(timeout_s)

    def accept(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Pass on."""
        self._grammars.accept(request_id, token_ids)

    def request_masks(self, rows: Sequence[tuple[int, str]]) -> None:
        """Pass on, and take the time."""
        started_s = time.perf_counter()
        self._grammars.request_masks(rows)
        self._sending_ms = 1000 * (time.perf_counter() - started_s)

    def collect_masks(self) -> list[RowBitmask]:
        """Pass on, and take the time."""
        started_s = time.perf_counter()
        masks = self._grammars.collect_masks()
        collecting_ms = 1000 * (time.perf_counter() - started_s)
        self.times.append(MaskTimes(self._sending_ms, collecting_ms))
        return masks

    def release(self, request_id: str) -> None:
        """Pass on."""
        self._grammars.release(request_id)

    def shutdown(self) -> None:
        """Pass on."""
        self._grammars.shutdown()
