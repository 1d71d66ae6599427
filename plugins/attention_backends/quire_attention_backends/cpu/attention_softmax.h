// Softmax weights of a tile of keys. Scores are exponents to base 2, so the softmax needs only 2^x.
#pragma once

#include "attention_products.h"
#include "attention_work.h"

// The factors for sums that are relative to the maxima `old` when the maxima become `now`.
INLINE vf rescalings(vf old, vf now) {
    vf zeros = zero(), ones = set1(1.0f);
    vf factors = old == set1(-INFINITY) ? zeros : power_of_two(old - now);
    return old == now ? ones : factors;
}

// tanh, with an absolute error of a few units of 2^-24.
INLINE vf tanh_of(vf v) {
    vf zeros = zero(), size = max(v, zeros - v);
    vf e = power_of_two(size * set1(-2.8853901f));  // e^(-2 size)
    vf t = (set1(1.0f) - e) / (set1(1.0f) + e);
    return v < zeros ? zeros - t : t;
}

INLINE vi lane_numbers() {
    vi lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = i;
    return lanes;
}

// The linear bias of keys from `at` on for a query at the position `query` relative to them.
INLINE vf linear_bias(float slope, long at, long query) {
    return set1(slope) * to_float(lane_numbers() + set1i((int32_t)(at - query)));
}

// The visible keys of a row or a register tile, relative to the start of the tile of keys.
struct Span {
    long first, last;
    bool is_empty() const { return first >= last; }
};

// The scores of keys from `at` on, with -inf for keys outside the span.
INLINE vf hide_outside(vf scores, long at, Span seen) {
    vi key = lane_numbers() + set1i((int32_t)at);
    vf hidden = set1(-INFINITY);
    vi is_seen = (key >= set1i((int32_t)seen.first)) & (key < set1i((int32_t)seen.last));
    return is_seen ? scores : hidden;
}

// A row of a tile: the keys that it sees and the position of its query, relative to the start of the
// tile, and the slope of its linear bias.
struct TileRow {
    Span seen;
    long query;
    float slope;
};

// Turns products of a row with `keys`, whole vectors, into exponents: scales and biases are applied,
// and keys that the row does not see are hidden. Returns a vector of the largest, `most` included.
INLINE vf finish(float* scores, Span keys, const Layer& layer, const TileRow& row,
                 const float* k_scales, vf most) {
    const Span seen = row.seen;
    for (long j = keys.first; j < keys.last; j += LANES) {
        vf score = load(scores + j);
        if (k_scales) score = score * load(k_scales + j);
        if (layer.cap != 0.0f) score = set1(layer.cap) * tanh_of(score);
        if (row.slope != 0.0f) score = score + linear_bias(row.slope, j, row.query);
        if (j < seen.first || j + LANES > seen.last) score = hide_outside(score, j, seen);
        most = max(score, most);
        store(scores + j, score);
    }
    return most;
}

// Replaces the exponents of a row by the words of its softmax weights, which are relative to `most`.
// Returns the sum of the weights, by lanes.
template <class Multiply>
INLINE vf weigh_row(float* scores, Span keys, float most, const float* v_scales) {
    typedef typename Multiply::Word Word;
    constexpr long STEP = Multiply::STEP;
    Word* words = reinterpret_cast<Word*>(scores);  // written behind the scores that are read
    vf total = zero();
    for (long j = keys.first; j < keys.last; j += Multiply::SLOT) {
        vf weights[STEP], scaled[STEP];
        for (int i = 0; i < STEP; i++) {
            scaled[i] = weights[i] = Multiply::weight(load(scores + j + i * LANES), set1(most));
            if (v_scales) scaled[i] = weights[i] * load(v_scales + j + i * LANES);
        }
        auto packed = Multiply::pack(scaled);
        std::memcpy(words + j / STEP, &packed, sizeof packed);
        total = Multiply::add_weights(total, weights, packed);
    }
    return total;
}

// The online softmax of adjacent rows: their largest scores so far, and the sums of the weights
// relative to them. Whole vectors are read and written, so there is room behind the last row.
struct RowStates {
    float *largest, *total;
};

// Replaces the exponents of up to LANES rows by the words of their softmax weights. `keys` are whole
// slots, and the largest lane of most[r] is the largest of the row r. Writes the factors by which
// the rows' sums must be multiplied. `v_scales_of(r)` are the scales of a row's values, or null.
template <class Multiply, class ScalesOf>
INLINE void weigh(float* scores, long columns, long num_rows, Span keys, vf (&most)[LANES],
                  const RowStates& states, float* factors, ScalesOf v_scales_of) {
    const vf old = load(states.largest), never = set1(-INFINITY), zeros = zero();
    const vf now = Multiply::maxima(max(largest_of_each(most), old)), factor = rescalings(old, now);
    float relative_to[LANES];
    store(relative_to, now == never ? zeros : now);
    vf totals[LANES] = {};
    for (long r = 0; r < num_rows; r++)
        totals[r] =
            weigh_row<Multiply>(scores + r * columns, keys, relative_to[r], v_scales_of(r));
    store(states.largest, now);
    store(states.total, load(states.total) * factor + sums(totals));
    store(factors, factor);
}
