"""Triton search for the tokens that filters keep, by counts and masses of tokens above pivots.

A token is kept if the tokens with larger logits are fewer than `limit` and have a mass below
`mass_limit`. Count and mass fall as the logit rises, and one pass over a row gives both for several
pivots. Tokens with equal logits are kept or dropped together.
"""

# ruff: noqa: ANN001, ANN201, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

import triton
import triton.language as tl

from quire_samplers.gumbel.gumbel_noise import gumbel_noise
from quire_samplers.gumbel.gumbel_pivots import NUM_PIVOTS, first_pivots, pivots_between

BLOCK: tl.constexpr = tl.constexpr(512)  # tokens compared with all pivots at once
MIN_TEMPERATURE: tl.constexpr = tl.constexpr(1e-5)  # as in `temperature`
TINY: tl.constexpr = tl.constexpr(1.1754943508222875e-38)  # one token is always kept
INF: tl.constexpr = tl.constexpr(float("inf"))


@triton.jit
def bracket(
    x_row, vocab_size, num_chunks, temperature, floor, best, scores, limit, top_p,
    row, chunk_counts, chunk_masses,
    CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr, FIRST_PIVOTS: tl.constexpr,
):  # fmt: skip
    """Return a dropped logit, a kept logit, and the mass limit of top-p."""
    pivots = first_pivots(best, FIRST_PIVOTS)
    chunks = tl.arange(0, NUM_CHUNKS)
    places = (row * num_chunks + chunks[None, :]) * FIRST_PIVOTS
    places += tl.arange(0, FIRST_PIVOTS)[:, None]
    is_there = (chunks < num_chunks)[None, :]
    counts = tl.sum(tl.load(chunk_counts + places, is_there, other=0), 1)
    masses = tl.sum(tl.load(chunk_masses + places, is_there, other=0.0), 1)
    mass_limit = INF
    if top_p < 1:
        total = tl.max(masses, 0)
        if tl.max(counts, 0) > limit:
            total = _weight_of_first(
                x_row, vocab_size, num_chunks, temperature, floor, best, scores, limit,
                pivots, counts, masses, CHUNK, NUM_CHUNKS,
            )  # fmt: skip
        mass_limit = tl.maximum(top_p, TINY) * total
    is_kept = (counts < limit) & (masses < mass_limit)
    low = tl.max(tl.where(is_kept, -INF, pivots), 0)
    high = tl.minimum(best, tl.min(tl.where(is_kept, pivots, INF), 0))
    return low, high, mass_limit


@triton.jit
def _weight_of_first(
    x_row, vocab_size, num_chunks, temperature, floor, best, scores, limit,
    pivots, counts, masses, CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Return the mass of the `limit` most likely tokens, of more tokens than that.

    The logit of the last of them is in (low, high]. The range shrinks until exactly `limit` tokens
    are above `low`, or all tokens in it have the same logit, which is soon the case for logits in
    half precision; all missing tokens then have that logit.
    """
    is_out = counts >= limit
    low = tl.max(tl.where(is_out, pivots, -INF), 0)
    high = tl.minimum(best, tl.min(tl.where(is_out, INF, pivots), 0))
    num_low = tl.min(tl.where(is_out, counts, vocab_size), 0)
    num_high = tl.max(tl.where(is_out, 0, counts), 0)
    mass_low = tl.min(tl.where(is_out, masses, INF), 0)
    mass_high = tl.max(tl.where(is_out, 0.0, masses), 0)
    lowest = high
    is_one_logit = False
    while (num_low > limit) & (not is_one_logit):
        between = pivots_between(low, high, lowest)
        counts_now, masses_now, lowest, _ = pass_over_row(
            x_row, vocab_size, num_chunks, temperature, floor, best, scores,
            low, between, tl.full((), 0, tl.uint64), False, CHUNK, NUM_CHUNKS,
        )  # fmt: skip
        is_out_now = counts_now >= limit
        low = tl.maximum(low, tl.max(tl.where(is_out_now, between, -INF), 0))
        high = tl.minimum(high, tl.min(tl.where(is_out_now, INF, between), 0))
        num_low = tl.minimum(num_low, tl.min(tl.where(is_out_now, counts_now, vocab_size), 0))
        num_high = tl.maximum(num_high, tl.max(tl.where(is_out_now, 0, counts_now), 0))
        mass_low = tl.minimum(mass_low, tl.min(tl.where(is_out_now, masses_now, INF), 0))
        mass_high = tl.maximum(mass_high, tl.max(tl.where(is_out_now, 0.0, masses_now), 0))
        is_one_logit = lowest >= high
        lowest = tl.where(lowest > low, lowest, high)
    with_ties = mass_high + (limit - num_high).to(tl.float32) * tl.exp(high - best)
    return tl.where(num_low == limit, mass_low, with_ties)


@triton.jit
def pass_over_row(
    x_row, vocab_size, num_chunks, temperature, floor, best, scores,
    low, pivots, key,
    SAMPLE: tl.constexpr, CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
):  # fmt: skip
    """Count and weigh the tokens above each pivot; find the lowest logit above `low`, or sample.

    No pivot is below `low`, so chunks without a logit above it are not read.
    """
    counts = tl.zeros((NUM_PIVOTS, BLOCK), tl.int32)
    masses = tl.zeros((NUM_PIVOTS, BLOCK), tl.float32)
    best_scores = tl.full((BLOCK,), -INF, tl.float32)
    best_tokens = tl.zeros((BLOCK,), tl.int32)
    lowest = tl.full((BLOCK,), INF, tl.float32)
    chunk = _next_chunk(scores, -1, low, NUM_CHUNKS)
    while chunk < num_chunks:
        for part in tl.static_range(CHUNK // BLOCK):
            token_ids = chunk * CHUNK + part * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(x_row + token_ids, token_ids < vocab_size, other=-INF)
            x = scaled(x, temperature)
            x = tl.where(x < floor, -INF, x)
            is_above = x[None, :] > pivots[:, None]
            counts += is_above.to(tl.int32)
            masses += tl.where(is_above, tl.exp(x - best)[None, :], 0.0)
            if SAMPLE:
                noisy = tl.where(x > low, x + gumbel_noise(key, token_ids), -INF)
                is_better = noisy > best_scores
                best_scores = tl.where(is_better, noisy, best_scores)
                best_tokens = tl.where(is_better, token_ids, best_tokens)
            else:
                lowest = tl.minimum(lowest, tl.where(x > low, x, INF))
        chunk = _next_chunk(scores, chunk, low, NUM_CHUNKS)
    token = 0
    if SAMPLE:
        is_best = best_scores == tl.max(best_scores, 0)
        token = tl.min(tl.where(is_best, best_tokens, vocab_size), 0)
    return tl.sum(counts, 1), tl.sum(masses, 1), tl.min(lowest, 0), token


@triton.jit
def _next_chunk(scores, chunk, low, NUM_CHUNKS: tl.constexpr):
    chunks = tl.arange(0, NUM_CHUNKS)
    return tl.min(tl.where((chunks > chunk) & (scores > low), chunks, NUM_CHUNKS), 0)


@triton.jit
def filters_of(slot, vocab_size, top_ks, top_ps, min_ps):
    """Return the limit of top-k (the vocabulary size if off), top-p and min-p."""
    top_k = tl.load(top_ks + slot)
    limit = tl.where((top_k > 0) & (top_k < vocab_size), top_k, vocab_size).to(tl.int32)
    return limit, tl.load(top_ps + slot), tl.load(min_ps + slot)


@triton.jit
def scores_of_chunks(chunk_scores, row, num_chunks, NUM_CHUNKS: tl.constexpr):
    """Return the best score of each chunk; -inf after the last one."""
    chunks = tl.arange(0, NUM_CHUNKS)
    return tl.load(chunk_scores + row * num_chunks + chunks, chunks < num_chunks, other=-INF)


@triton.jit
def scaled(x, temperature):
    """Divide by the temperature, bit-exact with the step `temperature`."""
    return tl.div_rn(x, tl.zeros_like(x) + tl.maximum(temperature, MIN_TEMPERATURE))


@triton.jit
def lowest_by_min_p(best, min_p):
    """Return the lowest logit that min-p keeps."""
    return tl.where(min_p > 0, best + tl.log(tl.where(min_p > 0, min_p, 1.0)), -INF)


@triton.jit
def is_finite(x):
    """Return whether `x` is finite."""
    return (x > -INF) & (x < INF)
