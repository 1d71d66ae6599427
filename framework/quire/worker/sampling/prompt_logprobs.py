"""Prompt log probabilities, computed for a few rows of logits at a time to save memory.

The row at position p predicts the prompt token at p + 1. The last row of a prompt predicts the
first completion token, so it is not included; nor are the rows after it, which a request computes
again after a preemption.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from quire.messages import ScheduledRequest, TokenLogprobs
from quire.worker.batch.slots import SlotTables
from quire.worker.device.copies import HostCopier
from quire.worker.sampling.row_logprobs import RowLogprobs, row_logprobs

MAX_ROWS = 64  # of logits at a time: [64, V] float32, and as much again for their softmax


@dataclass(slots=True)
class PromptLogprobs:
    """Prompt log probabilities of one slot in one step, on the device, in prompt order."""

    slot: int
    slices: list[RowLogprobs]

    def start_copy(self, copier: HostCopier) -> None:
        """Start to copy them to the host."""
        for part in self.slices:
            part.start_copy(copier)

    def read(self) -> list[TokenLogprobs]:
        """Wait for the copies, and return the log probabilities."""
        rows = [row for part in self.slices for row in part.read()]
        return [row for row in rows if row is not None]  # no row is None here


def compute_prompt_logprobs(
    requests: Sequence[ScheduledRequest],
    hidden_states: Tensor,  # [T, hidden_size]
    tables: SlotTables,
    compute_logits: Callable[[Tensor], Tensor],
    *,
    as_logits: bool = False,
) -> list[PromptLogprobs]:
    """Return the log probabilities of the prompt tokens that this step predicts.

    Args:
        requests: Scheduled requests of the step, in the order of its rows.
        hidden_states: Hidden states of the step.
        tables: Slot tables before the step.
        compute_logits: Function from `[N, hidden_size]` to `[N, V]` float32.
        as_logits: Whether the values are the logits themselves.
    """
    found: list[PromptLogprobs] = []
    first_row = 0
    for request in requests:
        info = tables.info_of(request.slot)
        if info.num_prompt_logprobs is not None:
            start = int(tables.num_computed[request.slot])
            num_rows = min(request.num_tokens, info.num_prompt_tokens - 1 - start)
            if num_rows > 0:
                rows = hidden_states[first_row : first_row + num_rows]
                targets = tables.token_ids[request.slot, start + 1 : start + 1 + num_rows].long()
                slices = _in_slices(
                    rows, targets, info.num_prompt_logprobs, compute_logits, as_logits=as_logits
                )
                found.append(PromptLogprobs(request.slot, slices))
        first_row += request.num_tokens
    return found


def _in_slices(
    rows: Tensor,  # [N, hidden_size]
    targets: Tensor,  # [N] int64
    num_top: int,
    compute_logits: Callable[[Tensor], Tensor],
    *,
    as_logits: bool,
) -> list[RowLogprobs]:
    found = []
    for start in range(0, len(rows), MAX_ROWS):
        logits = compute_logits(rows[start : start + MAX_ROWS])  # [up to MAX_ROWS, V]
        tokens = targets[start : start + MAX_ROWS]
        found.append(row_logprobs(logits, tokens, [num_top] * len(tokens), as_logits=as_logits))
    return found
