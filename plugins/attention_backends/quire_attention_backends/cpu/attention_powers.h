// Powers of two of vectors, for the softmax.
#pragma once

#include "vec.h"

#if defined(QUIRE_AVX512)
// 2^v within two units in the last place for v in [0, 1): a minimax polynomial.
INLINE vf power_of_fraction(vf v) {
    vf y = set1(1.8775767e-3f);
    y = fma(y, v, set1(8.9893401e-3f));
    y = fma(y, v, set1(5.5826318e-2f));
    y = fma(y, v, set1(2.4015374e-1f));
    y = fma(y, v, set1(6.9315307e-1f));
    return fma(y, v, set1(9.9999993e-1f));
}
INLINE vf fraction_of(vf v) {  // that of -inf is 0
    return (vf)_mm512_reduce_ps((__m512)v, _MM_FROUND_TO_NEG_INF);
}
#endif

// 2^v within two units in the last place for v <= 0; about 0 below -126; NaN stays NaN.
INLINE vf power_of_two(vf v) {
#if defined(QUIRE_AVX512)
    return (vf)_mm512_scalef_ps((__m512)power_of_fraction(fraction_of(v)), (__m512)v);
#else
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
#endif
}
INLINE float power_of_two(float x) { return power_of_two(set1(x))[0]; }

#if defined(QUIRE_AVX512)
// 2^(v - most) where `most` is an integer: another integer changes only the result's exponent.
INLINE vf power_of_difference(vf v, vf most) {
    vf whole = (vf)_mm512_roundscale_ps((__m512)v, _MM_FROUND_TO_NEG_INF);
    vf part = power_of_fraction(fraction_of(v));
    return (vf)_mm512_scalef_ps((__m512)part, (__m512)(whole - most));
}
#endif
