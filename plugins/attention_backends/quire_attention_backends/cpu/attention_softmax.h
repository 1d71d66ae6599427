// Softmax functions. Scores are exponents to base 2, so the softmax needs only 2^x.
#pragma once

#include "vec.h"

// 2^v within two units in the last place for v <= 0; 0 below -126; NaN stays NaN.
INLINE vf power_of_two(vf v) {
    vf x = max(set1(-126.0f), v);
    const vf magic = set1(12582912.0f);  // 1.5 * 2^23: the nearest integer, in the last bits
    vf shifted = x + magic;
    x = x - (shifted - magic);
    vf y = set1(1.5353362e-4f);  // coefficients of 2^x on [-1/2, 1/2] from Cephes (Moshier)
    y = fma(y, x, set1(1.3398874e-3f));
    y = fma(y, x, set1(9.6184373e-3f));
    y = fma(y, x, set1(5.5503324e-2f));
    y = fma(y, x, set1(2.4022648e-1f));
    y = fma(y, x, set1(6.9314720e-1f));
    y = fma(y, x, set1(1.0f));
    vf power = from_bits(bits(y) + (bits(shifted) << 23));
    vf zeros = zero();
    return v < set1(-126.0f) ? zeros : power;
}
INLINE float power_of_two(float x) { return power_of_two(set1(x))[0]; }

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

// The scores of a row with -inf for keys outside [first, last).
INLINE vf hide_outside(vf scores, long at, long first, long last) {
    vi key = lane_numbers() + set1i((int32_t)at);
    vf hidden = set1(-INFINITY);
    vi is_seen = (key >= set1i((int32_t)first)) & (key < set1i((int32_t)last));
    return is_seen ? scores : hidden;
}
