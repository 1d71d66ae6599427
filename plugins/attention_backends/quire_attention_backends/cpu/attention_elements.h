// Element types of a KV cache: conversion from float32 when stored and to float32 when read.
//
// Each int8 row has a scale, the largest |x| / 127. A float8 cache has one scale for K and one for
// V of a layer; elements are divided by it before they are stored. Everything rounds to nearest,
// ties to even.
#pragma once

#include "vec.h"

INLINE float as_float(uint32_t word) {
    float x;
    std::memcpy(&x, &word, 4);
    return x;
}
INLINE uint32_t as_word(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    return word;
}

// Returns the bits of a narrow float with MANTISSA bits and the exponent bias BIAS. `size` is
// finite, not negative, and at most the narrow type's maximum.
template <int MANTISSA, int BIAS>
INLINE uint32_t narrow(float size) {
    constexpr int DROPPED = 23 - MANTISSA;
    const float smallest_normal = as_float((uint32_t)(128 - BIAS) << 23);
    // In a sum with this, the last bit has the value of the smallest subnormal number.
    const uint32_t rounder = (uint32_t)(128 - BIAS + DROPPED) << 23;
    if (size < smallest_normal) return as_word(size + as_float(rounder)) - rounder;
    uint32_t word = as_word(size);
    word += (1u << (DROPPED - 1)) - 1 + ((word >> DROPPED) & 1);
    return (word >> DROPPED) - ((uint32_t)(127 - BIAS) << MANTISSA);
}

struct Float32 {
    typedef float Element;
    static constexpr bool HAS_ROW_SCALES = false;
    INLINE vf read(const float* p) { return load(p); }
    INLINE float convert(float* out, const float* x, long size, float) {
        std::memcpy(out, x, size * sizeof *out);
        return 1.0f;
    }
};

struct BFloat16 {
    typedef uint16_t Element;
    static constexpr bool HAS_ROW_SCALES = false;
    INLINE vf read(const uint16_t* p) { return load_bf16(p); }
    INLINE float convert(uint16_t* out, const float* x, long size, float) {
        for (long i = 0; i < size; i++) out[i] = to_bf16(x[i]);
        return 1.0f;
    }
};

struct Float16 {
    typedef uint16_t Element;
    static constexpr bool HAS_ROW_SCALES = false;
    INLINE vf read(const uint16_t* p) {
#if defined(QUIRE_AVX512)
        return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(QUIRE_AVX2)
        return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
        typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
        vh half;
        std::memcpy(&half, p, sizeof half);
        vi word = __builtin_convertvector(half, vi);
        vi infinite = (word & 0x7c00) == 0x7c00;  // infinities and NaN
        vf size = from_bits((word & 0x7fff) << 13) * set1(0x1p112f);
        size = from_bits(bits(size) | (infinite & 0x7f800000));
        return from_bits(bits(size) | ((word & 0x8000) << 16));
#endif
    }
    INLINE float convert(uint16_t* out, const float* x, long size, float) {
        for (long i = 0; i < size; i++) {
            float length = std::fabs(x[i]);
            uint32_t code = length < 65520.0f ? narrow<10, 15>(length)
                : length == length            ? 0x7c00
                                              : 0x7e00;
            out[i] = (uint16_t)(code | (as_word(x[i]) >> 16 & 0x8000));
        }
        return 1.0f;
    }
};

// e4m3fn: no infinity, the maximum is 448, one code is NaN.
struct Float8 {
    typedef uint8_t Element;
    static constexpr bool HAS_ROW_SCALES = false;
    INLINE vf read(const uint8_t* p) {
        typedef uint8_t vb __attribute__((vector_size(LANES)));
        vb codes;
        std::memcpy(&codes, p, sizeof codes);
        vi word = __builtin_convertvector(codes, vi);
        vf value = from_bits(((word & 0x80) << 24) | ((word & 0x7f) << 20)) * set1(0x1p120f);
        vi no_number = (word & 0x7f) == 0x7f;
        return from_bits(bits(value) | (no_number & 0x7fc00000));
    }
    INLINE float convert(uint8_t* out, const float* x, long size, float scale) {
        for (long i = 0; i < size; i++) {
            float value = x[i] / scale, length = std::fabs(value);
            uint32_t code = length <= 448.0f ? narrow<3, 7>(length)
                : length == length           ? 0x7e
                                             : 0x7f;
            out[i] = (uint8_t)(code | (as_word(value) >> 24 & 0x80));
        }
        return 1.0f;
    }
};

struct Int8 {
    typedef int8_t Element;
    static constexpr bool HAS_ROW_SCALES = true;
    INLINE vf read(const int8_t* p) { return load_i8(p); }
    // Returns the row's scale; infinity if the row has a NaN, so that reads do not hide it.
    INLINE float convert(int8_t* out, const float* x, long size, float) {
        float largest = 0.0f;
        for (long i = 0; i < size; i++) {
            float length = x[i] == x[i] ? std::fabs(x[i]) : INFINITY;
            largest = length > largest ? length : largest;
        }
        float scale = largest / 127.0f;
        float divisor = scale > 0.0f && scale < INFINITY ? scale : 1.0f;
        const float rounder = 12582912.0f;  // 1.5 * 2^23: rounds to the nearest integer
        for (long i = 0; i < size; i++) {
            float value = x[i] / divisor;
            value = value > 127.0f ? 127.0f : value > -127.0f ? value : -127.0f;
            out[i] = (int8_t)((value + rounder) - rounder);
        }
        return scale;
    }
};
