// A vector of float32 with the width of the instruction set that this file is compiled for.
//
// AVX-512: 16 lanes; AVX2 with FMA: 8; NEON, and any other target of GCC and Clang: 4. Products and
// sums are fused only where the source calls `fma`; the compiler must not fuse others
// (`-ffp-contract=off`). So each element is rounded in the same way in any lane.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define QUIRE_AVX512 1
constexpr int LANES = 16;
#elif defined(__AVX2__) && defined(__FMA__)
#define QUIRE_AVX2 1
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));

#define INLINE static inline __attribute__((always_inline))

INLINE vf zero() { return vf{}; }
INLINE vf set1(float x) { return x - vf{}; }
INLINE vi set1i(int32_t x) { return x - vi{}; }

INLINE vf load(const float* p) {
    vf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }

INLINE vi bits(vf v) { return (vi)v; }
INLINE vf from_bits(vi v) { return (vf)v; }

// a * b + c, rounded once.
INLINE vf fma(vf a, vf b, vf c) {
#if defined(QUIRE_AVX512)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(QUIRE_AVX2)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    vf out;
    for (int i = 0; i < LANES; i++) out[i] = std::fma(a[i], b[i], c[i]);
    return out;
#endif
}

INLINE vf max(vf a, vf b) {
#if defined(QUIRE_AVX512)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(QUIRE_AVX2)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}
INLINE vf min(vf a, vf b) {
#if defined(QUIRE_AVX512)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(QUIRE_AVX2)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}

INLINE vf to_float(vi v) { return __builtin_convertvector(v, vf); }

// A bfloat16 is the upper 16 bits of a float32.
INLINE vf load_bf16(const uint16_t* p) {
#if defined(QUIRE_AVX512)
    __m256i half = _mm256_loadu_si256((const __m256i*)p);
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
#elif defined(QUIRE_AVX2)
    __m128i half = _mm_loadu_si128((const __m128i*)p);
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
#else
    typedef uint16_t vh __attribute__((vector_size(LANES * 2)));
    typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
    vh half;
    std::memcpy(&half, p, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
#endif
}

// Exact, also for small numbers, infinities and NaN.
INLINE float from_f16(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu;
    uint32_t word = (magnitude << 13) + (magnitude < 0x7c00u ? 112u << 23 : 224u << 23);
    if (magnitude < 0x400u) word += 1u << 23;  // exponent 0: no hidden bit
    float x;
    std::memcpy(&x, &word, 4);
    if (magnitude < 0x400u) x -= 6.103515625e-05f;
    return half & 0x8000u ? -x : x;
}
// Rounds to nearest, ties to even; NaN stays NaN.
INLINE uint16_t to_f16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    const uint32_t sign = word >> 16 & 0x8000u, magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude < 113u << 23) {  // exponent 0: the last bit is worth as much as that of 1/2
        const float moved = (x < 0.0f ? -x : x) + 0.5f;
        std::memcpy(&word, &moved, 4);
        return (uint16_t)(sign | (word & 0x7fffu));
    }
    const uint32_t rounded = (magnitude + 0xfffu + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    return (uint16_t)(sign | (rounded < 0x7c00u ? rounded : 0x7c00u));
}
INLINE vf load_f16(const uint16_t* p) {
#if defined(QUIRE_AVX512)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(QUIRE_AVX2)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(__ARM_NEON) && defined(__aarch64__)
    float16x4_t halves;
    std::memcpy(&halves, p, sizeof halves);
    return (vf)vcvt_f32_f16(halves);
#else
    vf v;
    for (int i = 0; i < LANES; i++) v[i] = from_f16(p[i]);
    return v;
#endif
}

// Rounds like `to_f16`.
INLINE void store_f16(uint16_t* p, vf v) {
#if defined(QUIRE_AVX512)
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(QUIRE_AVX2)
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__ARM_NEON) && defined(__aarch64__)
    const float16x4_t halves = vcvt_f16_f32((float32x4_t)v);
    std::memcpy(p, &halves, sizeof halves);
#else
    for (int i = 0; i < LANES; i++) p[i] = to_f16(v[i]);
#endif
}

// Rounds to nearest, ties to even; NaN stays NaN.
INLINE uint16_t to_bf16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    if ((word & 0x7fffffff) > 0x7f800000) return (uint16_t)((word >> 16) | 0x40);
    return (uint16_t)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}
INLINE float from_bf16(uint16_t half) {
    uint32_t word = (uint32_t)half << 16;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
}

INLINE vf load_i8(const int8_t* p) {
#if defined(QUIRE_AVX512)
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(QUIRE_AVX2)
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    typedef int8_t vb __attribute__((vector_size(LANES)));
    vb bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, vf);
#endif
}

// Sum and maximum of the lanes, always in the same order.
INLINE float sum(vf v) {
    float lane[LANES];
    std::memcpy(lane, &v, sizeof lane);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return lane[0];
}
INLINE float max_lane(vf v) {
    float lane[LANES];
    std::memcpy(lane, &v, sizeof lane);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
    return lane[0];
}

INLINE vf round_to_integer(vf v) {  // to nearest; for |v| < 2^22
    const vf magic = set1(12582912.0f);  // 1.5 * 2^23
    return (v + magic) - magic;
}

// Reduces x, and returns y and n, such that e^x = 2^n * (1 + x + y * x^2) with the reduced x.
// Cephes' reduction (Moshier), by the nearest multiple of log 2 in two parts, and its polynomial.
INLINE vf exp_polynomial(vf& x, vf& n) {
    n = round_to_integer(x * set1(1.44269504f));
    x = fma(n, set1(-0.693359375f), x);
    x = fma(n, set1(2.12194440e-4f), x);
    vf y = set1(1.9875691500e-4f);
    y = fma(y, x, set1(1.3981999507e-3f));
    y = fma(y, x, set1(8.3334519073e-3f));
    y = fma(y, x, set1(4.1665795894e-2f));
    y = fma(y, x, set1(1.6666665459e-1f));
    return fma(y, x, set1(5.0000001201e-1f));
}

// Returns y near one, and n, such that e^x = 2^n * y.
INLINE vf exp_without_power(vf x, vf& n) {
    vf y = exp_polynomial(x, n);
    return fma(y, x * x, x + set1(1.0f));
}

// e^v within one unit in the last place; 0 below -87.3, infinity above 88.7.
INLINE vf exp(vf v) {
    const vf low = set1(-87.33654f), high = set1(88.72284f);
    vf x = min(max(v, low), high);
    vf n, y = exp_without_power(x, n);
    vi exponent = __builtin_convertvector(n, vi);
    vi half = exponent >> 1;  // in two steps, because 2^128 is not a float32
    vf scaled = y * from_bits((half + set1i(127)) << 23);
    scaled = scaled * from_bits((exponent - half + set1i(127)) << 23);
    vf zeros = zero(), infinity = set1(INFINITY);
    scaled = v < low ? zeros : scaled;
    scaled = v > high ? infinity : scaled;
    return v != v ? v : scaled;
}
