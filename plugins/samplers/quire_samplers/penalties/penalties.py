"""Penalties for tokens that a request has already: repetition, presence and frequency.

Only the logits of known tokens are read and written, in whole rows and in shards of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 8192  # tokens of each row at a time
MIN_REPETITION = 1e-3  # of LIMITS; padding rows have 0
Change = Callable[["Tensor", "Tensor"], "Tensor"]


class RepetitionPenalty(LogitsProcessor):
    """Logits processor that reads `repetition_penalty`, for tokens of prompt and completion.

    Positive logits are divided by it, negative ones multiplied. Keskar et al., "CTRL", 2019.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the penalty is 1."""
        return bool(fields["repetition_penalty"] == 1)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Penalize the known tokens."""
        penalty = rows.field("repetition_penalty").clamp(min=MIN_REPETITION)

        def penalized(known: Tensor, token_ids: Tensor) -> Tensor:
            del token_ids
            return (known * penalty).where(known < 0, known / penalty)

        return change_known_tokens(logits, rows, penalized)


class SampledTokenPenalties(LogitsProcessor):
    """Logits processor that reads `presence_penalty` and `frequency_penalty`.

    Each token of the completion loses the frequency penalty as often as it occurs, and the presence
    penalty once. Tokens of the prompt alone keep their logits.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether both penalties are 0."""
        return bool(fields["presence_penalty"] == 0 and fields["frequency_penalty"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Penalize the sampled tokens."""
        presence, frequency = rows.field("presence_penalty"), rows.field("frequency_penalty")

        def penalized(known: Tensor, token_ids: Tensor) -> Tensor:
            counts = rows.counts_of(token_ids)
            return known - frequency * counts - presence * (counts > 0)

        return change_known_tokens(logits, rows, penalized)


def change_known_tokens(
    logits: Tensor,  # [N, M] float32, in place
    rows: SampledRows,
    change: Change,  # logits and ids of known tokens, [N, L] both -> new logits [N, L]
) -> Tensor:
    """Return the logits with those of each row's known tokens changed, each token once.

    A token that occurs several times is written several times with one value. Places without a
    token of this shard write what another place of the row writes, or what is there.
    """
    num_columns, num_known = logits.shape[1], rows.num_known
    out = logits if num_known <= CHUNK else logits.clone()
    for start in range(0, num_known, CHUNK):
        token_ids, is_known = rows.known_tokens(start, start + CHUNK)
        columns = token_ids - rows.first_token_id
        is_here = is_known & (columns >= 0) & (columns < num_columns)
        first = is_here.byte().argmax(-1, keepdim=True)
        columns = columns.where(is_here, columns.gather(1, first)).clamp(0, num_columns - 1)
        changed = change(logits.gather(1, columns), columns + rows.first_token_id)
        is_row_here = is_here.any(-1, keepdim=True)
        out.scatter_(1, columns, changed.where(is_row_here, out.gather(1, columns)))
    return out
