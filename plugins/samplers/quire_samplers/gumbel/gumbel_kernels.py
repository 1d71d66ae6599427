"""Triton kernels of Gumbel sampling: best of each chunk, weights above pivots, token selection.

A row without filters is complete after one pass over its logits. A row with filters needs neither a
sort nor the exact logit at which the kept tokens end. The winner among the tokens above some logit
is the result if it is itself kept, because it then also wins among the kept tokens, a subset. If it
is not kept, the tokens up to its logit are out, and the next pass samples above it.

No value depends on other rows, on the order of programs, or on whether the filters are fused:
maxima are exact, and sums run in a fixed order.
"""

# ruff: noqa: ANN001, ANN201, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

import triton
import triton.language as tl

from quire_samplers.gumbel.gumbel_noise import gumbel_noise, row_key
from quire_samplers.gumbel.gumbel_pivots import first_pivots, pivots_between
from quire_samplers.gumbel.gumbel_search import (
    BLOCK,
    bracket,
    filters_of,
    is_finite,
    lowest_by_min_p,
    pass_over_row,
    scaled,
    scores_of_chunks,
)

CHUNK = 4096  # tokens per program of the first two launches, at most
NUM_FIRST_PIVOTS = 16
INF: tl.constexpr = tl.constexpr(float("inf"))


@triton.jit
def best_of_chunks(
    logits, row_stride, vocab_size, first_token_id, slots, positions,
    seeds, children, temperatures, top_ks, top_ps, min_ps,
    chunk_scores, chunk_tokens,
    FUSE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Find the best token of a chunk, with noise unless the row is greedy or has filters.

    The logits may be those of a shard of `vocab_size` tokens, which begins at `first_token_id`; no
    row has filters then.
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    slot = tl.load(slots + row)
    temperature = tl.load(temperatures + slot)
    token_ids = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * row_stride + token_ids, token_ids < vocab_size, other=-INF)
    is_noisy = temperature > 0
    if FUSE:
        if is_noisy:
            x = scaled(x, temperature)
        limit, top_p, min_p = filters_of(slot, vocab_size, top_ks, top_ps, min_ps)
        is_noisy = is_noisy & (limit >= vocab_size) & (top_p >= 1) & (min_p == 0)
    if is_noisy:
        position = tl.load(positions + row)
        key = row_key(tl.load(seeds + slot), tl.load(children + slot), position)
        x += gumbel_noise(key, first_token_id + token_ids)
    x = tl.where(x == x, x, INF)  # a NaN wins, and its row fails
    score, index = tl.max(x, 0, return_indices=True)
    place = row * tl.num_programs(1) + chunk
    tl.store(chunk_scores + place, score)
    tl.store(chunk_tokens + place, first_token_id + chunk * CHUNK + index)


@triton.jit
def weigh_chunks(
    logits, row_stride, vocab_size, num_chunks, slots,
    temperatures, top_ks, top_ps, min_ps,
    chunk_scores, chunk_counts, chunk_masses,
    CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr, FIRST_PIVOTS: tl.constexpr,
):  # fmt: skip
    """Count and weigh the tokens of each chunk above the first pivots, for rows that need it.

    Most rows do not, so there are only as many programs as the device can run at once; each takes
    the chunks of its row with a stride.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    temperature = tl.load(temperatures + slot)
    limit, top_p, min_p = filters_of(slot, vocab_size, top_ks, top_ps, min_ps)
    if (temperature > 0) & ((limit < vocab_size) | (top_p < 1)):
        best = tl.max(scores_of_chunks(chunk_scores, row, num_chunks, NUM_CHUNKS), 0)
        if is_finite(best):
            floor = lowest_by_min_p(best, min_p)
            pivots = first_pivots(best, FIRST_PIVOTS)
            for chunk in range(tl.program_id(1), num_chunks, tl.num_programs(1)):
                counts = tl.zeros((FIRST_PIVOTS, BLOCK), tl.int32)
                masses = tl.zeros((FIRST_PIVOTS, BLOCK), tl.float32)
                for part in tl.static_range(CHUNK // BLOCK):
                    token_ids = chunk * CHUNK + part * BLOCK + tl.arange(0, BLOCK)
                    is_token = token_ids < vocab_size
                    x = tl.load(logits + row * row_stride + token_ids, is_token, other=-INF)
                    x = scaled(x, temperature)
                    x = tl.where(x < floor, -INF, x)
                    is_above = x[None, :] > pivots[:, None]
                    counts += is_above.to(tl.int32)
                    masses += tl.where(is_above, tl.exp(x - best)[None, :], 0.0)
                place = (row * num_chunks + chunk) * FIRST_PIVOTS + tl.arange(0, FIRST_PIVOTS)
                tl.store(chunk_counts + place, tl.sum(counts, 1))
                tl.store(chunk_masses + place, tl.sum(masses, 1))


@triton.jit
def select_tokens(
    logits, row_stride, vocab_size, num_chunks, slots, positions,
    seeds, children, temperatures, top_ks, top_ps, min_ps,
    chunk_scores, chunk_tokens, chunk_counts, chunk_masses, sampled,
    FUSE: tl.constexpr, CHUNK: tl.constexpr, NUM_CHUNKS: tl.constexpr,
    FIRST_PIVOTS: tl.constexpr,
):  # fmt: skip
    """Select the best token of the chunks, or sample the token of a row with filters."""
    row = tl.program_id(0).to(tl.int64)
    scores = scores_of_chunks(chunk_scores, row, num_chunks, NUM_CHUNKS)
    best, chunk = tl.max(scores, 0, return_indices=True)
    token = tl.load(chunk_tokens + row * num_chunks + chunk)
    if FUSE:
        slot = tl.load(slots + row)
        temperature = tl.load(temperatures + slot)
        limit, top_p, min_p = filters_of(slot, vocab_size, top_ks, top_ps, min_ps)
        is_limited = (limit < vocab_size) | (top_p < 1)
        if (temperature > 0) & (is_limited | (min_p > 0)) & is_finite(best):
            x_row = logits + row * row_stride
            floor = lowest_by_min_p(best, min_p)
            low = -INF  # logits up to here are out
            high = floor  # logits from here on are kept
            mass_limit = INF
            if is_limited:
                low, high, mass_limit = bracket(
                    x_row, vocab_size, num_chunks, temperature, floor, best, scores, limit, top_p,
                    row, chunk_counts, chunk_masses, CHUNK, NUM_CHUNKS, FIRST_PIVOTS,
                )  # fmt: skip
            position = tl.load(positions + row)
            key = row_key(tl.load(seeds + slot), tl.load(children + slot), position)
            value = high
            is_sampled = False
            while not is_sampled:
                pivots = pivots_between(low, high, value)
                counts, masses, _, token = pass_over_row(
                    x_row, vocab_size, num_chunks, temperature, floor, best, scores,
                    low, pivots, key, True, CHUNK, NUM_CHUNKS,
                )  # fmt: skip
                value = scaled(tl.load(x_row + token), temperature)
                is_kept = (counts < limit) & (masses < mass_limit)
                low = tl.maximum(low, tl.max(tl.where(is_kept, -INF, pivots), 0))
                high = tl.minimum(high, tl.min(tl.where(is_kept, pivots, INF), 0))
                is_sampled = value >= high
    tl.store(sampled + row, token.to(tl.int64))
