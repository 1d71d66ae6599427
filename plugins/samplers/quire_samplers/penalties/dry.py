"""DRY ("don't repeat yourself"): a penalty for tokens that would continue a repetition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor

MAX_MATCH = 50  # tokens of a repetition that count
MAX_PENALTY = 1e4
CHUNK = 4096  # positions at a time


class DRY(LogitsProcessor):
    """Logits processor that reads `dry_multiplier`, `dry_base`, `dry_allowed_length` and others.

    If the last n tokens occurred before, the token that followed them then loses
    multiplier * base ** (n - allowed length), for the largest n, and nothing below the allowed
    length. A repetition does not reach beyond a sequence breaker or the last `dry_range` tokens,
    and a breaker is never penalized. The definition is that of text-generation-webui, "DRY", 2024.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the multiplier is 0."""
        return bool(fields["dry_multiplier"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V]
        """Penalize the tokens that would continue a repetition."""
        lengths = self._match_lengths(logits, rows)
        allowed = rows.field("dry_allowed_length")
        exponent = lengths - allowed
        penalty = rows.field("dry_multiplier") * rows.field("dry_base").pow(exponent)
        is_repeated = (lengths > 0) & (exponent >= 0)
        return logits - penalty.clamp(max=MAX_PENALTY) * is_repeated

    def _match_lengths(self, logits: Tensor, rows: SampledRows) -> Tensor:
        """Return for each token how long a repetition is that it would continue, `[N, V]`."""
        end = rows.positions.unsqueeze(1)  # [N, 1]
        span = rows.field("dry_range")
        first = torch.where(span > 0, (end - span).clamp(min=0), 0)  # [N, 1]
        breakers = rows.column("dry_sequence_breakers")[:, :, 0].long()  # [N, B]
        is_breaker = rows.is_item("dry_sequence_breakers")
        back = torch.arange(MAX_MATCH, device=logits.device)
        places = end - 1 - back  # [N, L]
        last = rows.token_ids[rows.slots.unsqueeze(1), places.clamp(min=0)].long()
        is_broken = ((last.unsqueeze(2) == breakers.unsqueeze(1)) & is_breaker.unsqueeze(1)).any(2)
        reaches = ((places >= first) & ~is_broken).cummin(1).values  # [N, L]
        lengths = torch.zeros_like(logits)
        for start in range(0, rows.num_known, CHUNK):
            self._add_matches(lengths, rows, start, last, reaches, first)
        limits = torch.where(is_breaker, 0.0, math.inf)
        return lengths.scatter_reduce(1, breakers, limits, "amin")

    def _add_matches(
        self,
        lengths: Tensor,  # [N, V] float32, in place
        rows: SampledRows,
        start: int,
        last: Tensor,  # [N, L] int64, the last tokens, the last one first
        reaches: Tensor,  # [N, L] bool, whether a repetition may reach so far back
        first: Tensor,  # [N, 1] int64, position before which nothing counts
    ) -> None:
        """Compare the last tokens with those that end at the positions of a chunk."""
        before = min(start, MAX_MATCH)
        tokens, _ = rows.known_tokens(start - before, start + CHUNK + 1)  # [N, before + C + 1]
        ends = torch.arange(start, start + tokens.shape[1] - before - 1, device=tokens.device)
        if not len(ends):
            return
        padded = torch.nn.functional.pad(tokens, (MAX_MATCH - before, 0), value=-1)
        matches = ends < rows.positions.unsqueeze(1) - 1  # [N, C]
        found = torch.zeros_like(matches, dtype=torch.float32)
        for back in range(MAX_MATCH):
            offset = MAX_MATCH - back
            earlier = padded[:, offset : offset + len(ends)]
            matches = matches & (earlier == last[:, back : back + 1])
            matches &= reaches[:, back : back + 1] & (ends - back >= first)
            found += matches
        following = padded[:, MAX_MATCH + 1 : MAX_MATCH + 1 + len(ends)].clamp(min=0)
        lengths.scatter_reduce_(1, following, found, "amax")
