"""State that sampler steps carry from token to token of a request.

A step reads its state as it reads a field, from a column with one number per slot. After the
sampler it observes the token of each row and returns the next state. That is stored only when the
whole step of the engine has succeeded, so a batch that fails may be sampled again row by row. It
goes to the host beside the tokens, because a request that is preempted starts from the state after
its last token: state and tokens always reach the host together.

    column, after token t -> apply -> sampler -> token t + 1 -> observe -> column, after t + 1
                                                                    '---> host, with token t + 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.errors import RequestFailedError
from quire.interfaces.field_types import MAX_FLOAT32
from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire.layers.returned import check_returned
from quire.messages import ErrorReport
from quire.worker.batch.state_columns import StateColumns
from quire.worker.device.copies import HostCopier, HostCopy, upload
from quire.worker.sampling.step_errors import step_error

RowState = dict[str, float] | ErrorReport | None  # of one row on the host; None: it has no state


@dataclass(frozen=True, slots=True)
class StatefulStep:
    """A logits processor that carries state.

    Attributes:
        index: Its index in the pipeline.
        processor: The logits processor.
        states: Names of its states.
        name: Name of the step and its plugin, for error messages.
    """

    index: int
    processor: LogitsProcessor
    states: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Observed:
    """The states of one step after the sampled tokens.

    Attributes:
        step: The step.
        rows: Indexes of the rows whose requests need it.
        slots: Slot of each of them, `[M]` int64.
        values: States, `[M, S]` float32.
    """

    step: StatefulStep
    rows: Sequence[int]
    slots: Tensor
    values: Tensor


@dataclass(slots=True)
class ObservedStates:
    """The states of the rows of a batch after their tokens, and their copy to the host.

    Attributes:
        steps: States of each step that some row needs.
        num_rows: Number of rows of the batch.
        copy: Copy to the host, once started.
    """

    steps: Sequence[Observed]
    num_rows: int
    copy: HostCopy | None = None

    def store(self, columns: StateColumns) -> None:
        """Write the states to the columns that the next step of the engine reads."""
        for each in self.steps:
            columns.put(each.slots, each.step.states, each.values)

    def start_copy(self, copier: HostCopier) -> None:
        """Start to copy the states to the host, in one piece."""
        self.copy = copier.begin(self._packed())

    def read(self) -> list[RowState]:
        """Wait for the copy, and return the state of each row; an error if it is not finite."""
        (packed,) = (self._packed(),) if self.copy is None else self.copy.wait()
        numbers, end = packed.cpu().tolist(), 0
        found: list[RowState] = [None] * self.num_rows
        for each in self.steps:
            names = each.step.states
            for row in each.rows:
                start, end = end, end + len(names)
                values = numbers[start:end]
                known = found[row]
                if isinstance(known, ErrorReport):
                    continue
                if not np.isfinite(values).all():
                    found[row] = _not_finite(each.step, values)
                else:
                    found[row] = {**(known or {}), **dict(zip(names, values, strict=True))}
        return found

    def _packed(self) -> Tensor:  # [total] float32
        return torch.cat([each.values.flatten() for each in self.steps])


class StatefulSteps:
    """The steps of a pipeline that carry state.

    Args:
        steps: The steps, in the order of the pipeline.

    Attributes:
        bits: Bits of the steps in the pipeline.
    """

    def __init__(self, steps: Sequence[StatefulStep]) -> None:
        self._steps = tuple(steps)
        self.bits = sum(1 << step.index for step in steps)

    def initial(self, active: int, fields: Mapping[str, Any]) -> dict[str, float]:
        """Return the state of a request before its first token.

        Args:
            active: Bits of the steps that the request needs.
            fields: Its sampler fields.

        Raises:
            RequestFailedError: A step fails, or returns other than a finite number for each state.
        """
        found: dict[str, float] = {}
        for step in self._steps:
            if not active >> step.index & 1:
                continue
            try:
                values = np.array(step.processor.initial_state(fields), np.float64)
            except Exception as error:
                raise step_error(step.name, error) from error
            if values.shape != (len(step.states),) or not (abs(values) <= MAX_FLOAT32).all():
                raise RequestFailedError(
                    f"{step.name} must return {len(step.states)} finite number(s) as its initial "
                    f"state, got {values.tolist()}"
                )
            found |= dict(zip(step.states, values.astype(np.float32).tolist(), strict=True))
        return found

    def observe(
        self,
        active: Sequence[int],  # [N], bits of the steps that each row needs
        logits: Tensor,  # [N, V] float32, that the tokens were sampled from
        rows: SampledRows,
        token_ids: Tensor,  # [N] int64
    ) -> ObservedStates:
        """Return the states of all rows after their tokens.

        Raises:
            RequestFailedError: A step fails, or returns something other than `[M, S]` float32.
        """
        token_ids = token_ids.clamp(0, logits.shape[1] - 1)  # an invalid id fails its request only
        found = []
        for step in self._steps:
            own = [row for row, bits in enumerate(active) if bits >> step.index & 1]
            if len(own) == len(active):
                found.append(_observe(step, own, logits, rows, token_ids))
            elif own:
                at = upload(np.array(own), logits.device)
                found.append(_observe(step, own, logits[at], rows.select(own, at), token_ids[at]))
        return ObservedStates(found, len(active))


def _observe(
    step: StatefulStep, own: Sequence[int], logits: Tensor, rows: SampledRows, token_ids: Tensor
) -> Observed:
    try:
        values = step.processor.observe(logits, rows, token_ids)
    except Exception as error:
        raise step_error(step.name, error) from error
    shape = (len(own), len(step.states))
    check_returned(values, shape, torch.float32, logits.device, f"{step.name}, for states,")
    return Observed(step, own, rows.slots, values)


def _not_finite(step: StatefulStep, values: Sequence[float]) -> ErrorReport:
    shown = ", ".join(f"{name} = {value}" for name, value in zip(step.states, values, strict=True))
    return ErrorReport(
        RequestFailedError.code,
        f"{step.name} returned a state that is not finite ({shown}), so the request cannot go on",
    )
