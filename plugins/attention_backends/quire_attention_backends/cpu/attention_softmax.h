// Softmax weights of a tile of keys. Scores are exponents to base 2, so the softmax needs only 2^x.
#pragma once

#include "attention_products.h"
#include "attention_work.h"

// The factor for sums that are relative to the maximum `old` when the maximum becomes `now`.
INLINE float rescaling(float old, float now) {
    return old == -INFINITY ? 0.0f : power_of_two(old - now);
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

// Scales of the rows of K and V in a tile of keys, or null.
struct KeyScales {
    const float *k, *v;
};

// A row's online softmax: the largest score so far, and the sum of the weights relative to it.
struct RowState {
    float *largest, *total;
};

// Replaces the scores of a row by the words of its softmax weights: those of the keys in `seen`,
// and zeros in the rest of `tile`. The query is at `query`, relative to the tile. Returns the
// factor by which the row's sum must be multiplied.
template <class Multiply>
float weigh(float* scores, const Layer& layer, Span seen, Span tile, float slope, long query,
            KeyScales scales, RowState state) {
    typedef typename Multiply::Word Word;
    constexpr long STEP = Multiply::STEP, SLOT = Multiply::SLOT;
    Word* words = reinterpret_cast<Word*>(scores);  // written behind the scores that are read
    const vf zeros[STEP] = {};
    const long from = tile.first / SLOT * SLOT, to = rounded_up(tile.last, SLOT);
    const long begin = seen.is_empty() ? to : seen.first / SLOT * SLOT;
    const long end = seen.is_empty() ? to : rounded_up(seen.last, SLOT);
    auto put = [&](long j, const vf(&weights)[STEP]) __attribute__((always_inline)) {
        auto packed = Multiply::pack(weights);
        std::memcpy(words + j / STEP, &packed, sizeof packed);
        return packed;
    };
    for (long j = from; j < begin; j += SLOT) put(j, zeros);
    if (seen.is_empty()) return 1.0f;
    vf most = set1(*state.largest);
    for (long j = begin; j < end; j += LANES) {
        vf score = load(scores + j);
        if (scales.k) score = score * load(scales.k + j);
        if (layer.cap != 0.0f) score = set1(layer.cap) * tanh_of(score);
        if (slope != 0.0f) score = score + linear_bias(slope, j, query);
        if (j < seen.first || j + LANES > seen.last) score = hide_outside(score, j, seen);
        most = max(score, most);
        store(scores + j, score);
    }
    float now = Multiply::maximum(largest_lane(most)), factor = rescaling(*state.largest, now);
    vf total = zero();
    for (long j = begin; j < end; j += SLOT) {
        vf weights[STEP], scaled[STEP];
        for (int i = 0; i < STEP; i++) {
            scaled[i] = weights[i] = Multiply::weight(load(scores + j + i * LANES), set1(now));
            if (scales.v) scaled[i] = weights[i] * load(scales.v + j + i * LANES);
        }
        total = Multiply::add_weights(total, weights, put(j, scaled));
    }
    for (long j = end; j < to; j += SLOT) put(j, zeros);
    *state.total = *state.total * factor + sum_of_lanes(total);
    *state.largest = now;
    return factor;
}
