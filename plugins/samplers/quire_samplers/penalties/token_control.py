"""Control of single tokens by the request: `logit_bias`, `allowed_token_ids` and `bad_words`.

Where a grammar or `min_tokens` permits none of the tokens that a request leaves, the request's own
list does not apply at that position: at least one token always stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor


class LogitBias(LogitsProcessor):
    """Logits processor that reads `logit_bias`, a map of token ids to summands."""

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether no token has a bias other than 0."""
        return not any(fields["logit_bias"].values())

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Add the bias of each token; items without a token of this shard add 0."""
        columns = rows.column("logit_bias.keys").long() - rows.first_token_id  # [N, items]
        is_here = rows.is_item("logit_bias") & (columns >= 0) & (columns < logits.shape[1])
        bias = rows.column("logit_bias").masked_fill(~is_here, 0.0)
        return logits.scatter_add_(1, columns * is_here, bias)


class AllowedTokenIds(LogitsProcessor):
    """Logits processor that reads `allowed_token_ids`, a set; empty: all tokens."""

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether all tokens are allowed."""
        return not fields["allowed_token_ids"]

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V]
        """Mask all other tokens."""
        words = rows.column("allowed_token_ids")  # [N, ceil(V / 32)]
        bit_of = torch.arange(8, dtype=torch.uint8, device=words.device)
        bits = words.view(torch.uint8).unsqueeze(2).bitwise_right_shift(bit_of) & 1
        is_allowed = bits.flatten(1)[:, : logits.shape[1]].bool()
        is_allowed |= rows.column("allowed_token_ids.count") == 0
        return _unless_none_is_left(logits.masked_fill(~is_allowed, -math.inf), logits)


class BadWords(LogitsProcessor):
    """Logits processor that reads `bad_words`: tokens that would complete one are masked.

    A word of several tokens is completed by its last one if the tokens before it, of prompt and
    completion, are its others.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether there are no bad words."""
        return not fields["bad_words"]

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V]
        """Mask the last tokens of words of which all others are there."""
        is_word = rows.is_item("bad_words")  # [N, W]
        lengths = rows.column("bad_words.lengths").long() * is_word
        last = self._tokens(rows, lengths - 1) * is_word
        for back in range(1, self._max_length(rows)):  # one at a time: no [N, W, L] is needed
            positions = rows.positions.unsqueeze(1) - back  # [N, 1]
            known = rows.token_ids[rows.slots.unsqueeze(1), positions.clamp(min=0)]
            is_there = (self._tokens(rows, lengths - 1 - back) == known) & (positions >= 0)
            is_word &= is_there | (lengths <= back)
        limits = torch.full_like(last, math.inf, dtype=torch.float32)
        limits.masked_fill_(is_word, -math.inf)
        return _unless_none_is_left(logits.scatter_reduce(1, last, limits, "amin"), logits)

    def _tokens(self, rows: SampledRows, indexes: Tensor) -> Tensor:  # [N, W], both
        """Return one token of each word; that of an index below 0 is not used."""
        table = rows.slot_fields["bad_words"]  # [slots, W, L]
        words = torch.arange(table.shape[1], device=table.device)
        return table[rows.slots.unsqueeze(1), words, indexes.clamp(min=0)].long()

    def _max_length(self, rows: SampledRows) -> int:
        """Return the length of the longest word, as far as the host knows."""
        if not rows.host_fields:
            return rows.slot_fields["bad_words"].shape[2]
        words = [word for fields in rows.host_fields for word in fields["bad_words"]]
        return max((len(word) for word in words), default=0)


def _unless_none_is_left(masked: Tensor, logits: Tensor) -> Tensor:  # [N, V]
    """Return the masked logits, and the given ones in rows that have no other finite logit."""
    return masked.where(masked.amax(-1, keepdim=True) > -math.inf, logits)
