"""Cutoffs of unlikely tokens: by a fixed probability, by entropy, by the largest probability."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.interfaces.sampling import LogitsProcessor, SampledRows
from quire_samplers.filters.entropy import entropy_of

if TYPE_CHECKING:
    from torch import Tensor


class EpsilonCutoff(LogitsProcessor):
    """Logits processor that drops tokens less likely than `epsilon_cutoff`.

    Hewitt et al., "Truncation sampling as language model desmoothing", 2022.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether all tokens are kept."""
        return bool(fields["epsilon_cutoff"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of unlikely tokens to -inf."""
        return _keep_likely(logits, logits.softmax(-1), rows.field("epsilon_cutoff"))


class EtaCutoff(LogitsProcessor):
    """Logits processor that drops tokens less likely than a threshold that falls with the entropy.

    The threshold is the smaller of `eta_cutoff` and sqrt(eta_cutoff) * exp(-entropy). Hewitt et
    al., "Truncation sampling as language model desmoothing", 2022.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether all tokens are kept."""
        return bool(fields["eta_cutoff"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of unlikely tokens to -inf."""
        eta = rows.field("eta_cutoff")  # [N, 1]
        logprobs = logits.log_softmax(-1)
        lowest = eta.minimum(eta.sqrt() * (-entropy_of(logprobs)).exp())
        return _keep_likely(logits, logprobs.exp(), lowest)


class TopA(LogitsProcessor):
    """Logits processor that drops tokens less likely than `top_a` * (largest probability) ** 2.

    The definition is that of KoboldAI, "Top-a sampling", 2022.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether all tokens are kept."""
        return bool(fields["top_a"] == 0)

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of unlikely tokens to -inf."""
        probs = logits.softmax(-1)
        lowest = rows.field("top_a") * probs.amax(-1, keepdim=True).square()
        return _keep_likely(logits, probs, lowest)


def _keep_likely(logits: Tensor, probs: Tensor, lowest: Tensor) -> Tensor:
    """Drop the tokens below a probability, `[N, 1]`; the most likely ones always stay."""
    is_best = logits == logits.amax(-1, keepdim=True)
    return logits.masked_fill_((probs < lowest) & ~is_best, -math.inf)
