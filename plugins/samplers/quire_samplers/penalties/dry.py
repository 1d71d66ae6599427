"""DRY ("don't repeat yourself"): a penalty for tokens that would continue a repetition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire_samplers.plugin import MAX_REPETITION

if TYPE_CHECKING:
    from torch import Tensor

MAX_PENALTY = 1e4
CHUNK = 4096  # positions at a time
PADDING, NO_TOKEN = -1, -2  # equal to no token, and not to each other


class DRY(LogitsProcessor):
    """Logits processor that reads `dry_multiplier`, `dry_base`, `dry_allowed_length` and others.

    If the last n tokens occurred before, the token that followed them then loses
    multiplier * base ** (n - allowed length), for the largest n, and nothing below the allowed
    length. A repetition does not reach beyond a sequence breaker or the last `dry_range` tokens,
    its last `MAX_REPETITION` tokens count, and a breaker is never penalized. The definition is that
    of text-generation-webui, "DRY", 2024.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(vocab_size, device)
        self._can_look = device.type == "cpu"  # at values: elsewhere that waits for the device

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the multiplier is 0."""
        return bool(fields["dry_multiplier"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place on a CPU
        """Penalize the tokens that would continue a repetition."""
        if not self._can_look:
            return logits - self._penalties(logits, rows)
        index = rows.field("dry_multiplier").flatten().nonzero().flatten()  # rows with a penalty
        if not len(index):
            return logits
        penalized = rows.select(index.tolist(), index)
        return logits.index_add_(0, index, self._penalties(logits, penalized), alpha=-1)

    def _penalties(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V]
        """Return what is subtracted from the logits of the rows."""
        lengths = torch.arange(MAX_REPETITION + 1, device=logits.device)
        exponent = (lengths - rows.field("dry_allowed_length")).float()  # [N, L + 1]
        penalty = rows.field("dry_multiplier") * rows.field("dry_base").pow(exponent)
        is_repeated = (lengths > 0) & (exponent >= 0) & (rows.field("dry_multiplier") > 0)
        by_length = penalty.clamp(max=MAX_PENALTY).where(is_repeated, 0.0)
        return by_length.gather(1, self._match_lengths(logits, rows).long())

    def _match_lengths(self, logits: Tensor, rows: SampledRows) -> Tensor:
        """Return for each token how long a repetition is that it would continue, `[N, V]`."""
        end = rows.positions.unsqueeze(1)  # [N, 1]
        span = rows.field("dry_range")
        first = torch.where(span > 0, (end - span).clamp(min=0), 0)  # [N, 1]
        breakers = rows.column("dry_sequence_breakers")[:, :, 0].long()  # [N, B]
        is_breaker = rows.is_item("dry_sequence_breakers")
        back = torch.arange(MAX_REPETITION, device=logits.device)
        positions = end - 1 - back  # [N, L]
        last = rows.token_ids[rows.slots.unsqueeze(1), positions.clamp(min=0)].long()
        is_broken = ((last.unsqueeze(2) == breakers.unsqueeze(1)) & is_breaker.unsqueeze(1)).any(2)
        reaches = ((positions >= first) & ~is_broken).cummin(1).values  # [N, L]
        last = last.where(reaches, NO_TOKEN).int()
        lengths = logits.new_zeros(len(rows.slots), logits.shape[1])
        for start in range(0, rows.num_known, CHUNK):
            self._add_matches(lengths, rows, start, last, first)
        limits = torch.where(is_breaker, 0.0, math.inf)
        return lengths.scatter_reduce(1, breakers, limits, "amin")

    def _add_matches(
        self,
        lengths: Tensor,  # [N, V] float32, in place
        rows: SampledRows,
        start: int,
        last: Tensor,  # [N, L] int32, the last tokens, the last one first, as far as they count
        first: Tensor,  # [N, 1] int64, position before which nothing counts
    ) -> None:
        """Compare the last tokens with those that end at the positions of a chunk."""
        before = min(start, MAX_REPETITION)
        tokens, _ = rows.known_tokens(start - before, start + CHUNK + 1)  # [N, before + C + 1]
        ends = torch.arange(start, start + tokens.shape[1] - before - 1, device=tokens.device)
        if not len(ends):
            return
        padded = torch.nn.functional.pad(tokens, (MAX_REPETITION - before, 0), value=PADDING)
        positions = torch.arange(padded.shape[1], device=tokens.device) + start - MAX_REPETITION
        counted = padded.masked_fill(positions < first, PADDING).int()
        matches = ends < rows.positions.unsqueeze(1) - 1  # [N, C]
        found = torch.zeros_like(matches, dtype=torch.uint8)
        for back in range(MAX_REPETITION):
            offset = MAX_REPETITION - back
            matches &= counted[:, offset : offset + len(ends)] == last[:, back : back + 1]
            if self._can_look and not bool(matches.any()):
                break
            found += matches.view(torch.uint8)
        following = padded[:, MAX_REPETITION + 1 :].clamp(min=0)
        lengths.scatter_reduce_(1, following, found.float(), "amax")
