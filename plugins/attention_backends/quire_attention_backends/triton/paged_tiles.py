"""A tile of queries meets a tile of keys: the arithmetic that all paged kernels share.

M rows are queries of one request and the G query heads of one key/value head, so that K and V are
read once for all of them; row r is query r // G and head r % G. N tokens of K and V are a tile. D
is padded to a power of two: the padding is masked, so it costs arithmetic and no bandwidth.

Scores stay as the product gave them. `unit` turns them into logarithms to base 2 where they enter
the exponential, so the layer's scale, a float8 cache's scales and log2(e) are one multiplication,
which fuses with the subtraction of the maximum. A soft-cap comes before, and then `unit` is cap *
log2(e).

What is hidden from every row of a tile is masked where it is loaded, because it may be not a
number; what is hidden from some is masked in the scores.

float8 is decoded to float16, which holds it exactly, and multiplied so, by queries that end at
65504. int8 is decoded to the queries' type. Of int8 the scales of keys multiply scores, those of
values probabilities: the product with a scale is raised by `V_LIFT`, or that of small values would
leave float16 at its lower end, and `v_unit` takes it back.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: ANN001, ANN201, N803

import triton
import triton.language as tl

from quire_attention_backends.shared.kv_codec import decode_float8
from quire_attention_backends.shared.split_plan import first_seen

LOG2_E = 1.4426950408889634
TWO_LOG2_E = tl.constexpr(2.8853900817779268)
V_LIFT = 64.0  # 65504 / 127, the largest scale of float16, does not pass 65504 by it
LIFT = tl.constexpr(V_LIFT)
FLOAT16_MAX = tl.constexpr(65504.0)
FAR = tl.constexpr(15.0)  # tanh is 1 from there on, in float32


@triton.jit
def as_factor(q, TYPE: tl.constexpr):
    """Return queries in the type that is multiplied; what is finite stays so, the rest too."""
    if TYPE == tl.float16:  # noqa: SIM300
        wide = q.to(tl.float32)
        bounded = tl.minimum(tl.maximum(wide, -FLOAT16_MAX), FLOAT16_MAX)
        result = tl.where(tl.abs(wide) < float("inf"), bounded, wide).to(TYPE)
    else:
        result = q.to(TYPE)
    return result


@triton.jit
def pages_of(table_ptr, token, end, S: tl.constexpr, N: tl.constexpr):
    """Return the pages of the tile that begins with a token: one, or one for each of its tokens."""
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
    """Return the rows of K or V of a tile, decoded, [N, DP]; zeros where nobody sees."""
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
    """Return a matrix product; in the interpreter by rows, where their place must not matter.

    A tensor core makes all rows alike. NumPy's product rounds those at the edge of a block of its
    own differently. float32 is three products of tf32 parts, exact to its last bits.
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
    k_scales,  # [N] of int8
    tokens,  # [N]
    positions,  # [M]
    window,
    chunk,
    cap_unit,
    KIND: tl.constexpr,
    BY_ROWS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_REACH: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Return the scores of a tile, [M, N]; minus infinity where a row does not see a token."""
    scores = product(q, tl.trans(k), BY_ROWS)
    if KIND == "int8":
        scores *= k_scales[None, :]
    if HAS_CAP:
        bounded = tl.minimum(tl.maximum(scores * cap_unit, -FAR), FAR)
        scores = 1.0 - 2.0 / (1.0 + tl.exp2(bounded * TWO_LOG2_E))
    if IS_MASKED:
        is_visible = tokens[None, :] <= positions[:, None]
        if HAS_REACH:
            first = first_seen(positions, window, chunk)
            is_visible &= tokens[None, :] >= first[:, None]
        scores = tl.where(is_visible, scores, float("-inf"))
    return scores


@triton.jit
def take_in(
    acc,
    peak,
    mass,
    scores,
    v,
    v_scales,
    unit,
    KIND: tl.constexpr,
    BY_ROWS: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Add a tile to an answer in the making: its sum, its largest exponent, its denominator."""
    larger = tl.maximum(peak, tl.max(scores, 1) * unit)
    base = tl.where(larger == float("-inf"), 0.0, larger) if IS_MASKED else larger
    weights = tl.exp2(scores * unit - base[:, None])
    fade = tl.exp2(peak - base)
    mass = mass * fade + tl.sum(weights, 1)
    if KIND == "int8":
        weights *= (v_scales * LIFT)[None, :]
    acc = acc * fade[:, None]
    if BY_ROWS:
        acc += product(weights.to(v.dtype), v, BY_ROWS)
    else:
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="tf32x3")
    return acc, larger, mass


@triton.jit
def walk(
    q,
    acc,
    peak,
    mass,
    positions,  # [M]
    start,  # a multiple of N
    end,
    low,  # what lies before it is not read
    table_ptr,
    k_ptr,
    v_ptr,
    k_scales_ptr,
    v_scales_ptr,
    page_stride,
    scales_stride,
    window,
    chunk,
    unit,
    cap_unit,
    TYPE: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    DP: tl.constexpr,
    N: tl.constexpr,
    KIND: tl.constexpr,
    BY_ROWS: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_REACH: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Take in the tiles from `start` to `end`, each while the next one is copied to shared memory.

    The compiler makes it so: it moves the loads of a later tile before the products of this one.
    Pages are carried from turn to turn one tile ahead for that. Loaded at the top they would leave
    one buffer for K and V; carried two tiles ahead, none.
    """
    pages = pages_of(table_ptr, start, end, S, N)
    for token in range(start, end, N):
        tokens = token + tl.arange(0, N)
        is_seen = tokens < end
        if HAS_REACH:
            is_seen &= tokens >= low
        k = load_rows(k_ptr, pages, page_stride, tokens, is_seen, TYPE, D, S, DP, KIND, IS_MASKED)
        k_scales, v_scales = tokens, tokens
        if KIND == "int8":
            at = pages * scales_stride + tokens % S
            k_scales = tl.load(k_scales_ptr + at, mask=is_seen, other=0.0)
            v_scales = tl.load(v_scales_ptr + at, mask=is_seen, other=0.0)
        scores = score_tile(
            q, k, k_scales, tokens, positions, window, chunk, cap_unit, KIND, BY_ROWS, HAS_CAP,
            HAS_REACH, IS_MASKED,
        )  # fmt: skip
        v = load_rows(v_ptr, pages, page_stride, tokens, is_seen, TYPE, D, S, DP, KIND, IS_MASKED)
        acc, peak, mass = take_in(
            acc, peak, mass, scores, v, v_scales, unit, KIND, BY_ROWS, IS_MASKED
        )
        pages = pages_of(table_ptr, token + N, end, S, N)
    return acc, peak, mass


@triton.jit
def walk_splits(
    q,
    positions,
    start,
    end,
    low,
    slot,  # of the first split's partial answer, or -1
    acc_ptr,  # of partial answers, [.., M, DP]
    stats_ptr,
    rows,
    is_row,
    slot_rows,
    table_ptr,
    k_ptr,
    v_ptr,
    k_scales_ptr,
    v_scales_ptr,
    page_stride,
    scales_stride,
    window,
    chunk,
    unit,
    cap_unit,
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
    HAS_REACH: tl.constexpr,
):
    """Answer each split from `start` to `end` from nothing; keep the answers, or merge in order.

    This is batch-invariant mode: whatever program runs a split, and whatever rows are beside a row,
    the same operations on the same shapes make its bits.
    """
    acc, peak, mass = nothing(M, DP)
    for split in range(start // SPLIT * SPLIT, end, SPLIT):
        part_acc, part_peak, part_mass = nothing(M, DP)
        part_acc, part_peak, part_mass = walk(
            q, part_acc, part_peak, part_mass, positions, tl.maximum(split, start),
            tl.minimum(split + SPLIT, end), low, table_ptr, k_ptr, v_ptr, k_scales_ptr,
            v_scales_ptr, page_stride, scales_stride, window, chunk, unit, cap_unit, TYPE, D, S, DP,
            N, KIND, BY_ROWS, HAS_CAP, HAS_REACH, True,
        )  # fmt: skip
        if slot >= 0:
            index = slot + (split - start // SPLIT * SPLIT) // SPLIT
            keep(
                acc_ptr, stats_ptr, index.to(tl.int64) * slot_rows + rows, is_row,
                part_acc, part_peak, part_mass, D, DP,
            )  # fmt: skip
        else:
            acc, peak, mass = merge(acc, peak, mass, part_acc, part_peak, part_mass)
    return acc, peak, mass


@triton.jit
def nothing(M: tl.constexpr, DP: tl.constexpr):
    """Return the answer of rows that have seen nothing."""
    peak = tl.full((M,), float("-inf"), tl.float32)
    return tl.zeros((M, DP), tl.float32), peak, tl.zeros((M,), tl.float32)


@triton.jit
def keep(acc_ptr, stats_ptr, at, is_row, acc, peak, mass, D: tl.constexpr, DP: tl.constexpr):
    """Store partial answers at some rows of the scratch."""
    d = tl.arange(0, DP)
    tl.store(acc_ptr + at[:, None] * D + d[None, :], acc, mask=is_row[:, None] & (d < D)[None, :])
    tl.store(stats_ptr + at * 2, peak, mask=is_row)
    tl.store(stats_ptr + at * 2 + 1, mass, mask=is_row)


@triton.jit
def merge(acc, peak, mass, other_acc, other_peak, other_mass):
    """Return two partial answers as one; one that saw nothing changes no bit of the other."""
    larger = tl.maximum(peak, other_peak)
    base = tl.where(larger == float("-inf"), 0.0, larger)
    fade, other_fade = tl.exp2(peak - base), tl.exp2(other_peak - base)
    mass = mass * fade + other_mass * other_fade
    return acc * fade[:, None] + other_acc * other_fade[:, None], larger, mass


@triton.jit
def finished(acc, peak, mass, sinks, v_unit, HAS_SINKS: tl.constexpr):
    """Return the answer; a row that saw nothing is zero."""
    if HAS_SINKS:  # logarithms to base 2, one a row; beyond 2**126 nothing but the sink is left
        base = tl.where(peak == float("-inf"), 0.0, peak)
        mass += tl.exp2(tl.minimum(sinks - base, 126.0))
    return acc * (v_unit / tl.where(mass > 0.0, mass, 1.0))[:, None]
