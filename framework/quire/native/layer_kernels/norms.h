// Norms of one float32 row: RMS norm and layer norm, with the residual addition before them.
//
// A row is computed independently and always in the same order, and its last elements are computed
// in a padded vector. So a row's bits depend neither on its batch nor on the number of threads.
#pragma once

#include "rows.h"

namespace {

constexpr int CHAINS = 4;  // independent partial sums

// Returns the sum of squares of x + residual, and writes x + residual to `total`, if there is a
// residual.
template <bool HAS_RESIDUAL>
INLINE float sum_of_squares(const float* x, const float* residual, float* total, long size) {
    vf sums[CHAINS] = {};
    long i = 0;
    for (; i + CHAINS * LANES <= size; i += CHAINS * LANES)
        for (int c = 0; c < CHAINS; c++) {
            vf v = load(x + i + c * LANES);
            if (HAS_RESIDUAL) {
                v = v + load(residual + i + c * LANES);
                store(total + i + c * LANES, v);
            }
            sums[c] = fma(v, v, sums[c]);
        }
    for (; i < size; i += LANES) {
        long count = size - i < LANES ? size - i : LANES;
        vf v = load_part(x + i, count);
        if (HAS_RESIDUAL) {
            v = v + load_part(residual + i, count);
            store_part(total + i, v, count);
        }
        sums[0] = fma(v, v, sums[0]);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// out = x * factor * weight; without a weight x * factor.
INLINE void multiply(const float* x, float factor, const float* weight, float* out, long size) {
    const vf scale = set1(factor);
    long i = 0;
    if (!weight) {
        for (; i + LANES <= size; i += LANES) store(out + i, load(x + i) * scale);
        if (i < size) store_part(out + i, load_part(x + i, size - i) * scale, size - i);
        return;
    }
    for (; i + LANES <= size; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
    if (i < size) {
        vf product = load_part(x + i, size - i) * scale * load_part(weight + i, size - i);
        store_part(out + i, product, size - i);
    }
}

// Returns 1 / sqrt(mean + eps). Squares of large numbers overflow, and those of small numbers
// underflow, so such rows are summed again in float64.
INLINE float inverse_length(const float* x, float squares, long size, float eps) {
    double mean = squares;
    if (!(squares > 1e-30f && squares < 1e38f)) {
        mean = 0;
        for (long i = 0; i < size; i++) mean += (double)x[i] * x[i];
    }
    return (float)(1.0 / std::sqrt(mean / size + eps));
}

template <bool HAS_RESIDUAL>
void rms_norm_row(
    const float* x, const float* residual, const float* weight, float* out, float* total,
    long size, float eps
) {
    float squares = sum_of_squares<HAS_RESIDUAL>(x, residual, total, size);
    const float* summed = HAS_RESIDUAL ? total : x;
    multiply(summed, inverse_length(summed, squares, size, eps), weight, out, size);
}

// The first `count` lanes, followed by zeros.
INLINE vf first_lanes(vf v, long count) {
    float padded[LANES] = {};
    store_part(padded, v, count);
    return load(padded);
}

// Returns the sum of x + residual, and writes x + residual to `total`, if there is a residual.
template <bool HAS_RESIDUAL>
INLINE float sum_of_row(const float* x, const float* residual, float* total, long size) {
    vf sums[CHAINS] = {};
    long i = 0;
    for (; i + CHAINS * LANES <= size; i += CHAINS * LANES)
        for (int c = 0; c < CHAINS; c++) {
            vf v = load(x + i + c * LANES);
            if (HAS_RESIDUAL) {
                v = v + load(residual + i + c * LANES);
                store(total + i + c * LANES, v);
            }
            sums[c] = sums[c] + v;
        }
    for (; i < size; i += LANES) {
        long count = size - i < LANES ? size - i : LANES;
        vf v = load_part(x + i, count);
        if (HAS_RESIDUAL) {
            v = v + load_part(residual + i, count);
            store_part(total + i, v, count);
        }
        sums[0] = sums[0] + v;
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

INLINE float squared_distances(const float* x, float mean, long size) {
    const vf centre = set1(mean);
    vf sums[CHAINS] = {};
    long i = 0;
    for (; i + CHAINS * LANES <= size; i += CHAINS * LANES)
        for (int c = 0; c < CHAINS; c++) {
            vf v = load(x + i + c * LANES) - centre;
            sums[c] = fma(v, v, sums[c]);
        }
    for (; i < size; i += LANES) {
        long count = size - i < LANES ? size - i : LANES;
        vf v = first_lanes(load_part(x + i, count) - centre, count);
        sums[0] = fma(v, v, sums[0]);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Mean of a row, and 1 / sqrt(variance + eps).
struct Moments {
    float mean, inverse;
};

// Sums of very large or very small numbers are computed again in float64, as in `inverse_length`.
INLINE Moments moments(const float* x, float row_sum, long size, float eps) {
    float mean = row_sum / size, squares = squared_distances(x, mean, size);
    if (squares > 1e-30f && squares < 1e38f) {
        return {mean, (float)(1.0 / std::sqrt((double)squares / size + eps))};
    }
    double total = 0, distances = 0;
    for (long i = 0; i < size; i++) total += x[i];
    for (long i = 0; i < size; i++) distances += (x[i] - total / size) * (x[i] - total / size);
    return {(float)(total / size), (float)(1.0 / std::sqrt(distances / size + eps))};
}

// (v - mean) * inverse * weight + bias, for `count` elements; weight and bias may be null.
INLINE vf normalised(vf v, Moments of, const float* weight, const float* bias, long count) {
    v = (v - set1(of.mean)) * set1(of.inverse);
    if (weight) v = v * (count == LANES ? load(weight) : load_part(weight, count));
    return bias ? v + (count == LANES ? load(bias) : load_part(bias, count)) : v;
}

template <bool HAS_RESIDUAL>
void layer_norm_row(
    const float* x, const float* residual, const float* weight, const float* bias, float* out,
    float* total, long size, float eps
) {
    float row_sum = sum_of_row<HAS_RESIDUAL>(x, residual, total, size);
    const float* summed = HAS_RESIDUAL ? total : x;
    const Moments of = moments(summed, row_sum, size, eps);
    long i = 0;
    for (; i + LANES <= size; i += LANES) {
        const float *scale = weight ? weight + i : nullptr, *shift = bias ? bias + i : nullptr;
        store(out + i, normalised(load(summed + i), of, scale, shift, LANES));
    }
    if (i < size) {
        const float *scale = weight ? weight + i : nullptr, *shift = bias ? bias + i : nullptr;
        vf v = load_part(summed + i, size - i);
        store_part(out + i, normalised(v, of, scale, shift, size - i), size - i);
    }
}

}  // namespace
