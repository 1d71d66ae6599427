"""Tile arithmetic of the paged attention kernels: online softmax over tiles of K and V.

M rows are queries of one request and the G query heads of one key/value head, so that K and V are
read once for all of them; row r is query r // G and head r % G. A tile is N tokens of K and V. D is
padded to a power of two: the padding is masked, so it costs arithmetic but no bandwidth.

Scores are kept unscaled. `score_factor` turns them into exponents to base 2 in the argument of the
exponential, so the layer's scale, a float8 cache's scales and log2(e) are one multiplication, which
fuses with the subtraction of the maximum. A soft cap is applied before that, and `score_factor` is
then cap * log2(e).

Keys that are hidden from every row of a tile are masked when they are loaded, because they may be
NaN; keys that are hidden from some rows are masked in the scores.

float8 is decoded to float16, which holds it exactly, and multiplied by queries clamped to 65504.
int8 is decoded to the queries' type. The int8 scales of keys are applied to the scores, those of
values to the softmax weights. The product of a weight and a scale is multiplied by `V_LIFT`, as it
would underflow in float16 for small values; `out_factor` divides by it again.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from quire_attention_backends.shared.kv_codec import decode_float8
from quire_attention_backends.shared.score_factors import LOG2_E
from quire_attention_backends.shared.split_plan import first_seen

LOG2 = tl.constexpr(LOG2_E)
TWO_LOG2_E = tl.constexpr(2.8853900817779268)
V_LIFT = 64.0  # 65504 / 127, the largest scale of float16 values, times this is within 65504
LIFT = tl.constexpr(V_LIFT)
FLOAT16_MAX = tl.constexpr(65504.0)
TANH_LIMIT = tl.constexpr(15.0)  # from here on tanh is 1 in float32


@triton.jit
def as_operand(q, TYPE: tl.constexpr):
    """Return queries in the operand type; finite values stay finite, infinity and NaN are kept."""
    if TYPE == tl.float16:  # noqa: SIM300
        wide = q.to(tl.float32)
        bounded = tl.minimum(tl.maximum(wide, -FLOAT16_MAX), FLOAT16_MAX)
        result = tl.where(tl.abs(wide) < float("inf"), bounded, wide).to(TYPE)
    else:
        result = q.to(TYPE)
    return result


@triton.jit
def pages_of(table_ptr, token, end, S: tl.constexpr, N: tl.constexpr):
    """Return the page ids of the tile that starts at `token`: one, or one for each token."""
    if N <= S:
        page = tl.load(table_ptr + token // S, mask=token < end, other=0)
    else:
        index = token + tl.arange(0, N)
        page = tl.load(table_ptr + index // S, mask=index < end, other=0)
    return page.to(tl.int64)


@triton.jit
def load_rows(
    base_ptr, pages, page_stride, tokens, is_seen, TYPE: tl.constexpr, D: tl.constexpr,
    S: tl.constexpr, DP: tl.constexpr, KIND: tl.constexpr, IS_MASKED: tl.constexpr,
):  # fmt: skip
    """Return the rows of K or V of a tile, decoded, [N, DP]; zeros where `is_seen` is False."""
    d = tl.arange(0, DP)
    at = base_ptr + (pages * page_stride + (tokens % S) * D)[:, None] + d[None, :]
    if IS_MASKED:
        rows = tl.load(at, mask=is_seen[:, None] & (d < D)[None, :], other=0)
    elif D == DP:
        rows = tl.load(at)
    else:
        rows = tl.load(at, mask=(d < D)[None, :], other=0)
    if KIND == "float8":
        rows = decode_float8(rows)
    return rows.to(TYPE)


@triton.jit
def product(a, b, BY_ROWS: tl.constexpr):
    """Return a matrix product.

    `BY_ROWS` computes every row in the same way in the interpreter, for batch-invariant mode: a
    tensor core does so anyway, but NumPy's product rounds the rows at the edges of its internal
    blocks differently. A float32 product is three products of tf32 parts, with nearly the accuracy
    of float32.
    """
    if BY_ROWS:
        result = tl.sum(a.to(tl.float32)[:, :, None] * b.to(tl.float32)[None, :, :], 1)
    else:
        result = tl.dot(a, b, input_precision="tf32x3")
    return result


@triton.jit
def score_tile(
    q,
    k,  # [N, DP]
    k_scales,  # [N], for int8
    tokens,  # [N]
    positions,  # [M]
    window,
    chunk,
    cap_factor,
    slopes,  # [M], in units of scores
    KIND: tl.constexpr,
    BY_ROWS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Return the scores of a tile, [M, N]; -inf where a token is hidden from a row."""
    scores = product(q, tl.trans(k), BY_ROWS)
    if KIND == "int8":
        scores *= k_scales[None, :]
    if HAS_CAP:
        bounded = tl.minimum(tl.maximum(scores * cap_factor, -TANH_LIMIT), TANH_LIMIT)
        scores = 1.0 - 2.0 / (1.0 + tl.exp2(bounded * TWO_LOG2_E))
    if HAS_ALIBI:
        scores += slopes[:, None] * (tokens[None, :] - positions[:, None]).to(tl.float32)
    if IS_MASKED:
        is_visible = tokens[None, :] <= positions[:, None]
        if HAS_BOUNDS:
            first = first_seen(positions, window, chunk)
            is_visible &= tokens[None, :] >= first[:, None]
        scores = tl.where(is_visible, scores, float("-inf"))
    return scores


@triton.jit
def accumulate_tile(
    acc,
    row_max,
    row_sum,
    scores,
    v,
    v_scales,
    score_factor,
    KIND: tl.constexpr,
    BY_ROWS: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Update the softmax state with a tile: the weighted sum, the maximum and the denominator."""
    new_max = tl.maximum(row_max, tl.max(scores, 1) * score_factor)
    base = tl.where(new_max == float("-inf"), 0.0, new_max) if IS_MASKED else new_max
    weights = tl.exp2(scores * score_factor - base[:, None])
    rescale = tl.exp2(row_max - base)
    row_sum = row_sum * rescale + tl.sum(weights, 1)
    if KIND == "int8":
        weights *= (v_scales * LIFT)[None, :]
    acc = acc * rescale[:, None]
    if BY_ROWS:
        acc += product(weights.to(v.dtype), v, BY_ROWS)
    else:
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="tf32x3")
    return acc, new_max, row_sum


@triton.jit
def attend_tiles(
    q,
    state,  # acc, row_max, row_sum
    positions,  # [M]
    start,  # a multiple of N
    end,
    low,  # keys before it are not read
    cache,  # pointers to the table, K, V and their scales; strides of pages and scales
    bounds,  # window, chunk
    factors,  # score_factor, cap_factor, slopes
    TYPE: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    DP: tl.constexpr,
    N: tl.constexpr,
    KIND: tl.constexpr,
    BY_ROWS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Attend to the tiles from `start` to `end`, each while the next is copied to shared memory.

    The compiler pipelines the loop: it moves the loads of a later tile before the products of the
    current one. For that, page ids are loaded one iteration in advance. Loaded in the same
    iteration they would leave one buffer for K and V; two iterations in advance, none.
    """
    acc, row_max, row_sum = state
    table_ptr, k_ptr, v_ptr, k_scales_ptr, v_scales_ptr, page_stride, scales_stride = cache
    window, chunk = bounds
    score_factor, cap_factor, slopes = factors
    pages = pages_of(table_ptr, start, end, S, N)
    for token in range(start, end, N):
        tokens = token + tl.arange(0, N)
        is_seen = tokens < end
        if HAS_BOUNDS:
            is_seen &= tokens >= low
        k = load_rows(k_ptr, pages, page_stride, tokens, is_seen, TYPE, D, S, DP, KIND, IS_MASKED)
        k_scales, v_scales = tokens, tokens
        if KIND == "int8":
            at = pages * scales_stride + tokens % S
            k_scales = tl.load(k_scales_ptr + at, mask=is_seen, other=0.0)
            v_scales = tl.load(v_scales_ptr + at, mask=is_seen, other=0.0)
        scores = score_tile(
            q, k, k_scales, tokens, positions, window, chunk, cap_factor, slopes, KIND, BY_ROWS,
            HAS_CAP, HAS_ALIBI, HAS_BOUNDS, IS_MASKED,
        )  # fmt: skip
        v = load_rows(v_ptr, pages, page_stride, tokens, is_seen, TYPE, D, S, DP, KIND, IS_MASKED)
        acc, row_max, row_sum = accumulate_tile(
            acc, row_max, row_sum, scores, v, v_scales, score_factor, KIND, BY_ROWS, IS_MASKED
        )
        pages = pages_of(table_ptr, token + N, end, S, N)
    return acc, row_max, row_sum


@triton.jit
def attend_splits(
    q,
    positions,
    start,
    end,
    low,
    slot,  # slot of the first split's partial output, or -1
    acc_ptr,  # partial outputs
    stats_ptr,
    rows,
    is_row,
    slot_rows,
    cache,
    bounds,
    factors,
    TYPE: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    DP: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    SPLIT: tl.constexpr,
    KIND: tl.constexpr,
    BY_ROWS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_ALIBI: tl.constexpr,
    HAS_BOUNDS: tl.constexpr,
):
    """Compute each split from `start` to `end` separately; store the results or merge in order.

    This is for batch-invariant mode: the same operations on the same shapes compute a row,
    independent of the program that runs a split and of the other rows of the tile.
    """
    acc, row_max, row_sum = empty_state(M, DP)
    for split in range(start // SPLIT * SPLIT, end, SPLIT):
        part_acc, part_max, part_sum = attend_tiles(
            q, empty_state(M, DP), positions, tl.maximum(split, start),
            tl.minimum(split + SPLIT, end), low, cache, bounds, factors, TYPE, D, S, DP, N, KIND,
            BY_ROWS, HAS_CAP, HAS_ALIBI, HAS_BOUNDS, True,
        )  # fmt: skip
        if slot >= 0:
            index = slot + (split - start // SPLIT * SPLIT) // SPLIT
            store_partial(
                acc_ptr, stats_ptr, index.to(tl.int64) * slot_rows + rows, is_row,
                part_acc, part_max, part_sum, D, DP,
            )  # fmt: skip
        else:
            acc, row_max, row_sum = merge(acc, row_max, row_sum, part_acc, part_max, part_sum)
    return acc, row_max, row_sum


@triton.jit
def empty_state(M: tl.constexpr, DP: tl.constexpr):
    """Return the softmax state of rows before any key."""
    row_max = tl.full((M,), float("-inf"), tl.float32)
    return tl.zeros((M, DP), tl.float32), row_max, tl.zeros((M,), tl.float32)


@triton.jit
def store_partial(
    acc_ptr, stats_ptr, at, is_row, acc, row_max, row_sum, D: tl.constexpr, DP: tl.constexpr
):
    """Store partial outputs in the given rows of the scratch memory."""
    d = tl.arange(0, DP)
    tl.store(acc_ptr + at[:, None] * D + d[None, :], acc, mask=is_row[:, None] & (d < D)[None, :])
    tl.store(stats_ptr + at * 2, row_max, mask=is_row)
    tl.store(stats_ptr + at * 2 + 1, row_sum, mask=is_row)


@triton.jit
def load_partial(acc_ptr, stats_ptr, at, is_there, D: tl.constexpr, DP: tl.constexpr):
    """Load partial outputs from the given rows of the scratch memory; others are empty."""
    d = tl.arange(0, DP)
    is_valid = is_there[:, None] & (d < D)[None, :]
    acc = tl.load(acc_ptr + at[:, None] * D + d[None, :], mask=is_valid, other=0.0)
    row_max = tl.load(stats_ptr + at * 2, mask=is_there, other=float("-inf"))
    return acc, row_max, tl.load(stats_ptr + at * 2 + 1, mask=is_there, other=0.0)


@triton.jit
def merge(acc, row_max, row_sum, other_acc, other_max, other_sum):
    """Return the merge of two softmax states; an empty one leaves the other bit for bit."""
    new_max = tl.maximum(row_max, other_max)
    base = tl.where(new_max == float("-inf"), 0.0, new_max)
    rescale, other_rescale = tl.exp2(row_max - base), tl.exp2(other_max - base)
    row_sum = row_sum * rescale + other_sum * other_rescale
    return acc * rescale[:, None] + other_acc * other_rescale[:, None], new_max, row_sum


@triton.jit
def store_output(
    out_ptr, sinks_ptr, of_token, of_head, is_valid, acc, row_max, row_sum, out_factor,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Normalize and store the output of rows; a row without visible keys is zero."""
    if HAS_SINKS:  # exponents to base 2, one per row; above 126 only the sink remains
        sinks = tl.load(sinks_ptr + of_head).to(tl.float32) * LOG2
        base = tl.where(row_max == float("-inf"), 0.0, row_max)
        row_sum += tl.exp2(tl.minimum(sinks - base, 126.0))
    output = acc * (out_factor / tl.where(row_sum > 0.0, row_sum, 1.0))[:, None]
    d = tl.arange(0, DP)
    into = out_ptr + (of_token[:, None].to(tl.int64) * H + of_head[:, None]) * D + d[None, :]
    tl.store(into, output.to(out_ptr.dtype.element_ty), mask=is_valid)
