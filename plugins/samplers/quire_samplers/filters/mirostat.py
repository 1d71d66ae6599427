"""Mirostat: keeps the mean surprise of the sampled tokens, and so the perplexity, near a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows

if TYPE_CHECKING:
    from torch import Tensor

LOG_2 = math.log(2)
NUM_FITTED = 100  # most likely tokens to which version 1 fits Zipf's law
SMALL = 1e-6  # below it, exponents of Zipf's law are replaced by it, as 1 / exponent is needed


class Mirostat(LogitsProcessor):
    """Logits processor that reads `mirostat_mode`, `mirostat_tau` and `mirostat_eta`.

    The surprise of a token is -log2 of its probability. Version 2 drops the tokens whose surprise
    is larger than mu, but never the most likely one. Version 1 keeps the k most likely tokens; k is
    that for which the expected surprise is mu if the probabilities follow Zipf's law, whose
    exponent is fitted to the first ones. Both start with mu = 2 tau, and after each token subtract
    eta * (surprise - tau), where the surprise is that in the distribution which was sampled from.

    Basu et al., "Mirostat: A neural text decoding algorithm that directly controls perplexity",
    ICLR 2021; version 2 is from the code that accompanies the paper.
    """

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Return whether mirostat is off."""
        return bool(fields["mirostat_mode"] == 0)

    def initial_state(self, fields: Mapping[str, Any]) -> Sequence[float]:
        """Return the first mu, twice the target."""
        return [2 * fields["mirostat_tau"]]

    def apply(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V], in place
        """Set the logits of the tokens to -inf that are too surprising."""
        mode, mu = rows.field("mirostat_mode"), rows.field("mirostat_mu")  # [N, 1]
        log_probs = logits.log_softmax(-1)
        is_dropped = (log_probs < -mu * LOG_2) & (mode == 2)
        if any(fields["mirostat_mode"] == 1 for fields in rows.host_fields) or not rows.host_fields:
            kept = num_kept(zipf_exponent(log_probs), mu, self.vocab_size)
            is_dropped |= _is_beyond(log_probs, kept) & (mode == 1)
        is_dropped.scatter_(1, logits.argmax(-1, keepdim=True), value=False)
        return logits.masked_fill_(is_dropped, -math.inf)

    def observe(self, logits: Tensor, rows: SampledRows, token_ids: Tensor) -> Tensor:
        """Return the next mu of each row, `[N, 1]`."""
        surprise = -logits.log_softmax(-1).gather(1, token_ids[:, None]) / LOG_2
        error = surprise - rows.field("mirostat_tau")
        return rows.field("mirostat_mu") - rows.field("mirostat_eta") * error


def num_kept(exponent: Tensor, mu: Tensor, vocab_size: int) -> Tensor:  # [N, 1], all three
    """Return the number k of tokens that version 1 keeps, an integer from 1 on or infinity.

    With exponent s of Zipf's law and e = s - 1: k = (e * 2 ** mu / (1 - V ** -e)) ** (1 / s).
    """
    exponent = exponent.clamp(min=SMALL)
    epsilon = exponent - 1
    epsilon = torch.where(epsilon.abs() < SMALL, SMALL, epsilon)
    share = -torch.expm1(-epsilon * math.log(vocab_size))  # 1 - V ** -e, of the sign of e
    log_k = (epsilon / share).log() + mu.double() * LOG_2
    return (log_k / exponent).exp().floor().clamp(min=1).float()


def zipf_exponent(log_probs: Tensor) -> Tensor:  # [N, V] -> [N, 1] float64
    """Return the exponent that fits the steps between the most likely tokens best."""
    top = log_probs.topk(min(NUM_FITTED, log_probs.shape[1])).values.double()
    steps = top[:, :-1] - top[:, 1:]
    is_known = top[:, 1:].isfinite()  # masked tokens follow no law
    ranks = torch.arange(1, top.shape[1] + 1, device=top.device, dtype=top.dtype).log()
    widths = (ranks[1:] - ranks[:-1]) * is_known
    steps = steps.masked_fill(~is_known, 0)
    squares = (widths * widths).sum(-1, keepdim=True)
    return (widths * steps).sum(-1, keepdim=True) / squares.clamp(min=1e-30)


def _is_beyond(log_probs: Tensor, num_kept: Tensor) -> Tensor:  # [N, V], [N, 1] -> [N, V] bool
    """Return which tokens are not among the most likely ones; of equal ones the first are."""
    order = log_probs.argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(order.shape[1], device=order.device)
    is_beyond = (ranks >= num_kept).expand_as(order)
    return torch.zeros_like(is_beyond).scatter_(1, order, is_beyond)
