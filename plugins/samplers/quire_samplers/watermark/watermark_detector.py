"""Detection of watermarks in token ids, by the number of green tokens.

The test of Kirchenbauer et al., "A Watermark for Large Language Models", ICML 2023, section 3. It
needs the key and the settings that the text was generated with, but neither model nor logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.errors import InvalidRequestError
from quire_samplers.plugin import (
    MAX_CONTEXT_WIDTH,
    WATERMARK_CONTEXT_WIDTH,
    WATERMARK_GREENLIST_RATIO,
    WATERMARK_KEY,
)
from quire_samplers.watermark.green_list import context_seeds, is_green

NUM_TOKEN_IDS = 2**31  # of the largest vocabulary
CHUNK = 2**14  # windows at a time, which stay in the cache
SMALL = 2.0**-80  # part of a probability that is not worth adding


@dataclass(frozen=True, slots=True)
class WatermarkScore:
    """The result of a detection.

    Attributes:
        num_scored: Number of different pairs of context and token.
        num_green: Number of those whose token is green.
        z_score: Standard deviations by which the green tokens exceed their expected number.
        p_value: Probability of at least as many green tokens in a text without the watermark.
    """

    num_scored: int
    num_green: int
    z_score: float
    p_value: float


def detect_watermark(
    token_ids: Sequence[int],
    *,
    prompt_token_ids: Sequence[int] = (),
    key: int = WATERMARK_KEY.default,
    greenlist_ratio: float = WATERMARK_GREENLIST_RATIO.default,
    context_width: int = WATERMARK_CONTEXT_WIDTH.default,
) -> WatermarkScore:
    """Return how strongly token ids show the watermark of a key.

    A pair of context and token that is repeated counts once: its colour is always the same, so
    repetitions say nothing about the watermark.

    Args:
        token_ids: Token ids of the text.
        prompt_token_ids: Token ids before the text, which are the context of its first tokens. If
            they are not known, the first `context_width` tokens of the text are context alone.
        key: Value of `watermark_key`.
        greenlist_ratio: Value of `watermark_greenlist_ratio`.
        context_width: Value of `watermark_context_width`.

    Raises:
        InvalidRequestError: A value or a token id is out of range or no integer, or there are too
            few tokens.
    """
    ratio = WATERMARK_GREENLIST_RATIO.check(greenlist_ratio)
    width = WATERMARK_CONTEXT_WIDTH.check(context_width)
    known = torch.cat(
        (_checked(prompt_token_ids, "prompt_token_ids"), _checked(token_ids, "token_ids"))
    )
    if len(token_ids) == 0 or len(known) <= width:
        raise InvalidRequestError(
            f"a watermark with a context of {width} tokens is detected from {width + 1} tokens on, "
            f"got {len(known)}; pass prompt_token_ids if they are known",
            param="token_ids",
        )
    first = max(len(prompt_token_ids), width)
    windows = _distinct(known[first - width :].unfold(0, width + 1, 1))
    checked_key = WATERMARK_KEY.check(key)
    green = torch.cat([_green_of(part, checked_key, ratio) for part in torch.split(windows, CHUNK)])
    num_scored, num_green = len(green), int(green.sum())
    deviation = math.sqrt(num_scored * ratio * (1 - ratio))
    return WatermarkScore(
        num_scored,
        num_green,
        z_score=(num_green - num_scored * ratio) / deviation,
        p_value=binomial_tail(num_green, num_scored, ratio),
    )


def binomial_tail(at_least: int, num: int, probability: float) -> float:
    """Return the probability of `at_least` or more successes in `num` independent trials."""
    yes, no = math.log(probability), math.log1p(-probability)
    mean = num * probability
    start = max(at_least, math.floor(mean - 20 * math.sqrt(num)))  # below: exp(-800), by Hoeffding
    terms = [0.0]
    for k in range(start, num + 1):
        combinations = math.lgamma(num + 1) - math.lgamma(k + 1) - math.lgamma(num - k + 1)
        terms.append(math.exp(combinations + k * yes + (num - k) * no))
        if k > mean and terms[-1] <= terms[1] * SMALL:  # from the mean on they decrease
            break
    return min(1.0, math.fsum(terms))


def _checked(token_ids: Sequence[int], param: str) -> Tensor:  # [L] int64
    """Return token ids as a tensor.

    Raises:
        InvalidRequestError: One is no integer, or out of range.
    """
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int or not 0 <= token_id < NUM_TOKEN_IDS:
            raise InvalidRequestError(
                f"{param} must be integers from 0 to {NUM_TOKEN_IDS - 1}, "
                f"got {token_id!r:.50} at index {index}",
                param=param,
            )
    return torch.tensor(token_ids, dtype=torch.int64)


def _distinct(windows: Tensor) -> Tensor:  # [N, W] -> [M, W]
    """Return the windows without repetitions."""
    codes = torch.zeros(len(windows), dtype=torch.int64)
    for column in windows.unbind(1):  # a code stands for what a window has up to this column
        codes = torch.unique(codes * NUM_TOKEN_IDS + column, return_inverse=True)[1]
        if int(codes.max()) + 1 == len(codes):
            return windows
    last = torch.empty(int(codes.max()) + 1, dtype=torch.int64)
    return windows[last.scatter_(0, codes, torch.arange(len(codes)))]


def _green_of(windows: Tensor, key: int, ratio: float) -> Tensor:  # [N, width + 1] -> [N] bool
    """Return whether the last token of each window is green after the others."""
    width = windows.shape[1] - 1
    contexts = torch.zeros(len(windows), MAX_CONTEXT_WIDTH, dtype=torch.int64)
    contexts[:, MAX_CONTEXT_WIDTH - width :] = windows[:, :-1]
    keys, widths = torch.full((len(windows),), key), torch.full((len(windows),), width)
    seeds = context_seeds(keys, contexts, widths)
    ratios = torch.full((len(windows), 1), ratio)
    return is_green(seeds.unsqueeze(1), windows[:, -1:], ratios).squeeze(1)
