// Products of integers: codes of the weight and codes of x, which are made as the product begins.
//
// The inputs of a row are quantized in the groups of the weight: to codes from -127 to 127, and a
// scale that gives the largest of them the code 127. Products of a group are summed as int32, which
// is exact, so every instruction set gives the same bits. The weight's stored codes are unsigned;
// what their offset adds is corrected by the sum of the input's codes, also exactly.
//
// Products of four inputs are one instruction with VNNI and Arm's dot product. Without them codes
// are multiplied as 16 bits, in pairs: pairs of products of 8 bits would saturate.
#pragma once

#include "linear_formats.h"
#include "shuffle.h"

// One group of inputs of one row.
struct InputGroup {
    float scale;
    int32_t correction;  // initial value of the sum of products
    float sum;           // of the inputs as they are multiplied, for weights with offsets
};

#if defined(QUIRE_AVX512)
#define QUIRE_FUSED_BYTES "vpdpbusd %2, %1, %0"
#define QUIRE_FUSED_REGISTER "v"
#elif defined(QUIRE_AVX2) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define QUIRE_FUSED_BYTES "%{vex%} vpdpbusd %2, %1, %0"
#define QUIRE_FUSED_REGISTER "x"
#elif defined(__ARM_NEON) && defined(__aarch64__)
#define QUIRE_FUSED_BYTES ".arch_extension dotprod\n\tsdot %0.4s, %1.16b, %2.16b"
#define QUIRE_FUSED_REGISTER "w"
#endif

// Codes of `Stored`, multiplied by codes of x. IS_FUSED: four products are one instruction, which
// the caller has checked that the processor has.
template <class Stored, bool IS_FUSED>
struct Integers {
    static constexpr bool IS_INTEGER = true, SCALED = true;
    static constexpr bool HAS_OFFSETS = Stored::HAS_OFFSETS, HAS_ORDER = Stored::HAS_ORDER;
    static constexpr long SCALE_WIDTH = Stored::SCALE_WIDTH;
    static constexpr bool IS_BYTES = Stored::STEP == 4;
    static constexpr long SLOT = IS_FUSED ? 4 : 2;  // inputs per element of x
    static constexpr long STEP = Stored::STEP / SLOT, GROUP = Stored::GROUP / SLOT, WORD_BYTES = 4;
#if defined(__ARM_NEON)  // its instruction multiplies signed bytes by signed bytes
    static constexpr bool IS_SIGNED = IS_FUSED && IS_BYTES;
#else
    static constexpr bool IS_SIGNED = false;
#endif
    static constexpr int OFFSET = IS_SIGNED ? 0 : Stored::OFFSET;
    typedef vu Words;
    typedef vi Sum;

    INLINE Words load_codes(const uint8_t* p) { return load_words(p); }
    INLINE vi broadcast(const float* p) {
        int32_t element;
        std::memcpy(&element, p, sizeof element);
        return set1i(element);
    }
    // Codes of the inputs of element j.
    INLINE vi value(Words words, int j) {
        if constexpr (IS_SIGNED) return (vi)(words ^ 0x80808080u);
        if constexpr (IS_FUSED && IS_BYTES) return (vi)words;
        if constexpr (IS_FUSED) return (vi)(words >> (4 * j) & 0x0f0f0f0fu);
        const uint32_t mask = IS_BYTES ? 0x00ff00ffu : 0x000f000fu;
        return (vi)(words >> (j % 2 * 8 + j / 2 * 4) & mask);
    }
    // Consecutive elements of x, each with the codes of SLOT inputs in the order that `value` has.
    template <long COUNT>
    INLINE void write_elements(float* to, const int8_t* codes) {
        if constexpr (IS_FUSED) {
            std::memcpy(to, codes, COUNT * 4);
        } else {
            int16_t pairs[COUNT][2];
            for (long i = 0; i < COUNT; i++)
                for (long j = 0; j < 2; j++) pairs[i][j] = codes[i / 2 * 4 + i % 2 + j * 2];
            std::memcpy(to, pairs, sizeof pairs);
        }
    }
};

template <class Stored, bool IS_FUSED>
INLINE vi add_product(Integers<Stored, IS_FUSED>, vi value, vi column, vi sum) {
    if constexpr (IS_FUSED) {
#if defined(QUIRE_FUSED_BYTES)  // assembly, so that no other code gets this instruction
        asm(QUIRE_FUSED_BYTES
            : "+" QUIRE_FUSED_REGISTER(sum)
            : QUIRE_FUSED_REGISTER(column), QUIRE_FUSED_REGISTER(value));
#endif
        return sum;
    }
#if defined(QUIRE_AVX512)
    return sum + (vi)_mm512_madd_epi16((__m512i)value, (__m512i)column);
#elif defined(QUIRE_AVX2)
    return sum + (vi)_mm256_madd_epi16((__m256i)value, (__m256i)column);
#else
    return sum + (value << 16 >> 16) * (column << 16 >> 16) + (value >> 16) * (column >> 16);
#endif
}

// Quantizes the inputs of a group, of which `known` exist; the codes of others are 0. If one is not
// finite, the scale is NaN.
template <class F>
InputGroup quantize_inputs(F, int8_t* codes, const float* from, long known) {
    constexpr long VECTORS = F::GROUP * F::SLOT / LANES;
    typedef int8_t Bytes __attribute__((vector_size(LANES)));
    vf values[VECTORS], furthest = zero(), not_finite = zero();
    for (long i = 0; i < VECTORS; i++) {
        vf v = values[i] = load_some(from + i * LANES, known - i * LANES);
        furthest = max(furthest, max(v, -v));
        not_finite = not_finite + (v - v);
    }
    float scale = largest_lane(furthest) / 127.0f, nan = sum_of_lanes(not_finite);
    const float inverse = 1.0f / scale;  // of a scale of zero, which may be -0, it is infinite
    const bool has_inverse = nan == nan && inverse > 0.0f && inverse < INFINITY;
    vi total = {};
    for (long i = 0; i < VECTORS; i++) {
        vf rounded = has_inverse ? round_to_integer(values[i] * set1(inverse)) : zero();
        vi code = __builtin_convertvector(rounded, vi);
        total += code;
        Bytes bytes = __builtin_convertvector(code, Bytes);
        std::memcpy(codes + i * LANES, &bytes, sizeof bytes);
    }
    int32_t all = 0;
    for (int i = 0; i < LANES; i++) all += total[i];
    scale += nan;
    return {scale, -F::OFFSET * all, scale * (float)all};
}
