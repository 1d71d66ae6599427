"""How likely each token of a prompt was: a few rows of logits at a time, never a chunk's at once.

The row at position p predicts the prompt's token at p + 1. The last row of a prompt predicts the
answer's first token, so it is not among them; nor is any row behind it, which a request computes
again after a preemption.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from quire.messages import ScheduledRequest, TokenLogprobs
from quire.worker.batch.slots import SlotTables
from quire.worker.device.host_copy import HostCopier
from quire.worker.sampling.row_logprobs import RowLogprobs, row_logprobs

MAX_ROWS = 64  # of logits at the same time: [64, V] float32, and as much again for their softmax


@dataclass(slots=True)
class PromptLogprobs:
    """Those of one slot in one step, on the device, in the order of the prompt."""

    slot: int
    slices: list[RowLogprobs]

    def start_copy(self, copier: HostCopier) -> None:
        """Begin to bring them to the host."""
        for part in self.slices:
            part.start_copy(copier)

    def read(self) -> list[TokenLogprobs]:
        """Return them when they have arrived."""
        rows = [row for part in self.slices for row in part.read()]
        return [row for row in rows if row is not None]  # all of them asked


def compute_prompt_logprobs(
    requests: Sequence[ScheduledRequest],
    hidden_states: Tensor,  # [T, hidden_size]
    tables: SlotTables,
    compute_logits: Callable[[Tensor], Tensor],
) -> list[PromptLogprobs]:
    """Return the log probabilities of the prompt tokens that this step predicts.

    Args:
        requests: The shares of the step, in the order of its rows.
        hidden_states: What the step computed.
        tables: The slots' state before the step.
        compute_logits: `[N, hidden_size]` to `[N, V]` float32.
    """
    found: list[PromptLogprobs] = []
    if not tables.with_prompt_logprobs:
        return found
    first_row = 0
    for share in requests:
        info = tables.info_of(share.slot)
        if info.num_prompt_logprobs is not None:
            start = int(tables.num_computed[share.slot])
            num_rows = min(share.num_tokens, info.num_prompt_tokens - 1 - start)
            if num_rows > 0:
                rows = hidden_states[first_row : first_row + num_rows]
                targets = tables.token_ids[share.slot, start + 1 : start + 1 + num_rows].long()
                slices = _in_slices(rows, targets, info.num_prompt_logprobs, compute_logits)
                found.append(PromptLogprobs(share.slot, slices))
        first_row += share.num_tokens
    return found


def _in_slices(
    rows: Tensor,  # [N, hidden_size]
    targets: Tensor,  # [N] int64
    num_likeliest: int,
    compute_logits: Callable[[Tensor], Tensor],
) -> list[RowLogprobs]:
    found = []
    for start in range(0, len(rows), MAX_ROWS):
        logits = compute_logits(rows[start : start + MAX_ROWS])  # [up to MAX_ROWS, V]
        tokens = targets[start : start + MAX_ROWS]
        found.append(row_logprobs(logits, tokens, [num_likeliest] * len(tokens)))
    return found
