// Formats of weights from quantized checkpoints: codes of 4 or 8 bits, with a float32 scale, and
// perhaps an offset, for each group of inputs of an output:
//
//     weight = value(code) * scale + offset
//
// Scales are those of the checkpoint, so nothing is rounded. The offset of a group is multiplied by
// the sum of its inputs, which is computed as the product begins. The inputs of a group may be
// anywhere in x: the weight has them one after another, and x is read in their order.
//
// Products are of float32, of pairs of bfloat16, or of integers (integer_formats.h). Each has a
// library of its own, in which these macros are defined:
//
//     QUIRE_CODES                                            float32
//     QUIRE_CODES, QUIRE_CODES_AS_PAIRS                      pairs of bfloat16
//     QUIRE_CODES, QUIRE_CODES_AS_INTEGERS                   integers
//     QUIRE_CODES, QUIRE_CODES_AS_FUSED_INTEGERS             integers, four products in one instruction
#pragma once

#include "integer_formats.h"
#include "linear_formats.h"
#include "threads.h"

// Elements of a table by the lowest four bits.
INLINE vf looked_up(const float* table, vu codes) {
#if defined(QUIRE_AVX512)
    return (vf)_mm512_permutexvar_ps((__m512i)codes, (__m512)load(table));
#elif defined(QUIRE_AVX2)
    const __m256 low = _mm256_permutevar8x32_ps((__m256)load(table), (__m256i)codes);
    const __m256 high = _mm256_permutevar8x32_ps((__m256)load(table + LANES), (__m256i)codes);
    return (vf)_mm256_blendv_ps(low, high, (__m256)(codes << 28));
#else
    float found[LANES];
    for (int i = 0; i < LANES; i++) found[i] = table[codes[i] & 15];
    return load(found);
#endif
}

#if defined(QUIRE_PAIRS)
// The values of a table in bfloat16. They are there twice, because a lookup uses the lowest five
// bits: the fifth belongs to another code.
struct PairTable {
    alignas(ALIGNMENT) uint16_t values[32];
    explicit PairTable(const float (&table)[16]) {
        for (int i = 0; i < 32; i++) values[i] = to_bf16(table[i % 16]);
    }
};
template <class Values>
const PairTable PAIRS_OF{Values::VALUES};

// Values of the codes in the lowest bits of both halves of each word.
template <class Values>
INLINE vf looked_up_pairs(vu codes) {
    const __m512i table = _mm512_load_si512(PAIRS_OF<Values>.values);
    return (vf)_mm512_permutexvar_epi16((__m512i)codes, table);
}
#endif

// Values of 4-bit codes.
struct SignedNumbers {
    static constexpr bool ARE_INTEGERS = true;
    static constexpr int OFFSET = 8;
    static constexpr float VALUES[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    INLINE vf value(vu codes) {
#if defined(QUIRE_AVX512)
        return looked_up(VALUES, codes);
#else
        return offset_float(codes & 15, OFFSET);
#endif
    }
};
struct NormalFloats {  // quantiles of a normal distribution (Dettmers et al., 2023)
    static constexpr bool ARE_INTEGERS = false;
    static constexpr int OFFSET = 0;
    static constexpr float VALUES[16] = {
        -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
        0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
    };
    INLINE vf value(vu codes) { return looked_up(VALUES, codes); }
};
struct SmallFloats {  // e2m1
    static constexpr bool ARE_INTEGERS = false;
    static constexpr int OFFSET = 0;
    static constexpr float VALUES[16] = {
        0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,
        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f,
    };
    INLINE vf value(vu codes) { return looked_up(VALUES, codes); }
};

// Values of 8-bit codes.
struct SignedBytes {
    static constexpr bool ARE_INTEGERS = true;
    static constexpr int OFFSET = 128;
    INLINE vf value(vu words, int j) { return offset_float(words >> (8 * j) & 255, OFFSET); }
#if defined(QUIRE_PAIRS)
    INLINE vf pairs(vu codes) {  // numbers of 8 bits are exact in bfloat16
        return (vf)((vu)value(codes, 0) >> 16 | (vu)value(codes, 2));
    }
#endif
};
struct ByteFloats {  // e4m3, without NaN
    static constexpr bool ARE_INTEGERS = false;
    static constexpr int OFFSET = 0;
#if !defined(QUIRE_PAIRS)
    INLINE vf value(vu words, int j) {
        const vu codes = words >> (8 * j);
        const vf normal = (vf)(((codes & 0x7f) << 20) + (120u << 23));
        const vf found = min(normal, fma(normal, set1(2.0f), set1(-0.015625f)));  // no hidden bit
        return (vf)((vu)found | (codes & 0x80) << 24);
    }
#else
    INLINE vf value(vu words, int j) {  // two values take little longer than one
        const vu both = (vu)pairs(words >> (j % 2 * 8));
        return (vf)(j < 2 ? both << 16 : both & 0xffff0000);
    }
    // Values with the exponent 0, which have no hidden bit.
    static constexpr float VALUES[16] = {
        0 / 512.0f, 1 / 512.0f, 2 / 512.0f, 3 / 512.0f, 4 / 512.0f, 5 / 512.0f, 6 / 512.0f, 7 / 512.0f,
    };
    INLINE vf pairs(vu codes) {
        const __m512i magnitude = (__m512i)(codes & 0x007f007f);
        const __m512i bias = _mm512_set1_epi16(120 << 7);
        const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), bias);
        const __mmask32 are_small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
        const __m512i small = (__m512i)looked_up_pairs<ByteFloats>((vu)magnitude);
        const vu found = (vu)_mm512_mask_mov_epi16(normal, are_small, small);
        return (vf)(found | (codes << 8 & 0x80008000));
    }
#endif
};

template <class Values, long SIZE, bool OFFSETS>
struct CodeProducts : FloatProducts {
    static constexpr bool HAS_INTEGERS = Values::ARE_INTEGERS;
    static constexpr int OFFSET = Values::OFFSET;
    static constexpr bool SCALED = true, HAS_OFFSETS = OFFSETS, HAS_ORDER = true;
    static constexpr long GROUP = SIZE, WORD_BYTES = 4, SLOT = 1, SCALE_WIDTH = OFFSETS ? 8 : 4;
    typedef vu Words;
    INLINE Words load_codes(const uint8_t* p) { return load_words(p); }
};

template <class Values, long SIZE, bool OFFSETS = false>
struct Codes4 : CodeProducts<Values, SIZE, OFFSETS> {
    static constexpr long STEP = 8;
    static constexpr int shift(int j) { return Int4::shift(j); }
    INLINE vf value(vu words, int j) { return Values::value(words >> shift(j)); }
#if defined(QUIRE_PAIRS)
    INLINE vf pairs(vu codes) { return looked_up_pairs<Values>(codes); }
#endif
    static float read(const uint8_t* word, int j) { return value(load_word(word) - vu{}, j)[0]; }
};

template <class Values, long SIZE, bool OFFSETS = false>
struct Codes8 : CodeProducts<Values, SIZE, OFFSETS> {
    static constexpr long STEP = 4;
    static constexpr int shift(int j) { return 8 * j; }
    INLINE vf value(vu words, int j) { return Values::value(words, j); }
#if defined(QUIRE_PAIRS)
    INLINE vf pairs(vu codes) { return Values::pairs(codes); }
#endif
    static float read(const uint8_t* word, int j) { return value(load_word(word) - vu{}, j)[0]; }
};

#if defined(QUIRE_PAIRS)
// Codes whose values are multiplied as pairs of bfloat16. Those of 8-bit numbers, e2m1 and e4m3 are
// exact, those of nf4 are rounded. Scales and sums are float32, and offsets are multiplied by the sum
// of the rounded inputs.
//
// The codes of a pair are two bytes apart in a word: those of inputs 0 and 2, of 1 and 3, and with 4
// bits of 4 and 6, of 5 and 7.
template <class Stored>
struct CodePairs : FloatProducts {
    static constexpr bool SCALED = true, HAS_OFFSETS = Stored::HAS_OFFSETS, HAS_ORDER = true;
    static constexpr long SCALE_WIDTH = Stored::SCALE_WIDTH, WORD_BYTES = 4;
    static constexpr long SLOT = 2;  // inputs per element of x
    static constexpr long STEP = Stored::STEP / SLOT, GROUP = Stored::GROUP / SLOT;
    typedef vu Words;
    INLINE Words load_codes(const uint8_t* p) { return load_words(p); }
    INLINE vf value(vu words, int j) {
        return Stored::pairs(words >> Stored::shift(j / 2 * 4 + j % 2));
    }
    INLINE vf rounded(vf inputs) { return (vf)(bf16_words(inputs) << 16); }

    // Elements of x of two vectors of inputs.
    INLINE vf paired(vf first, vf second) {
        const __m512i a = (__m512i)bf16_words(first), b = (__m512i)bf16_words(second);
        const __m512i even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
        const __m512i odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
        const vu low = (vu)_mm512_permutex2var_epi64(a, even, b);
        const vu high = (vu)_mm512_permutex2var_epi64(a, odd, b);
        return (vf)(low | high << 16);
    }
};
template <class Stored>
INLINE vf add_product(CodePairs<Stored>, vf value, vf column, vf sum) {
    return add_pairs(value, column, sum);
}
#endif

#if defined(QUIRE_CODES_AS_FUSED_INTEGERS) && defined(QUIRE_FUSED_BYTES)
constexpr bool ARE_FUSED = true;
#else
constexpr bool ARE_FUSED = false;
#endif

// Calls work with the format of codes.
template <class Work>
void with_codes(int64_t format, const Work& work) {
    switch (format) {
        case 0: return work(Codes4<SignedNumbers, 128>());
        case 1: return work(Codes4<SignedNumbers, 128, true>());
        case 2: return work(Codes4<SignedNumbers, 32, true>());
        case 3: return work(Codes4<NormalFloats, 32>());
        case 4: return work(Codes4<SmallFloats, 32>());
        case 5: return work(Codes8<SignedBytes, 128, true>());
        case 6: return work(Codes8<SignedBytes, 32, true>());
        case 7: return work(Codes8<ByteFloats, 128>());
        case 8: return work(Codes8<SignedBytes, 16>());
        case 9: return work(Codes8<SignedBytes, 16, true>());
        case 10: return work(Codes4<SignedNumbers, 32>());
        case 11: return work(Codes8<SignedBytes, 128>());
        case 12: return work(Codes8<SignedBytes, 32>());
    }
}

// A weight as codes, [outputs, inputs], with scales and offsets for groups, [outputs, groups].
struct CodedWeight {
    const uint8_t* codes;
    const float* scales;
    const float* offsets;  // null: none
    int64_t groups;
};

// Elements of one output, `count` of them, in a word.
template <class F>
uint32_t word_of(const uint8_t* codes, long count) {
    uint32_t word = 0;
    for (long j = 0; j < count && j < F::STEP; j++) word |= (uint32_t)codes[j] << F::shift((int)j);
    return word;
}

template <class F>
void pack_codes_of(uint8_t* packed, const CodedWeight& from, long inputs, long outputs, long threads) {
    typedef Layout<F> At;
    const long bytes = At::panel_bytes(inputs);
    share_evenly(divided(outputs, PANEL), threads, [&](long p) {
        uint8_t* panel = packed + p * bytes;
        const long lanes = outputs - p * PANEL < PANEL ? outputs - p * PANEL : PANEL;
        std::memset(panel, 0, bytes);
        for (long lane = 0; lane < lanes; lane++) {
            const long output = p * PANEL + lane;
            for (long k = 0; k < inputs; k += F::GROUP) {
                const long group = output * from.groups + k / F::GROUP;
                uint8_t* scales = panel + At::word(k, 0) - At::SCALE_BYTES;
                std::memcpy(scales + lane * 4, from.scales + group, 4);
                if (F::HAS_OFFSETS && from.offsets)
                    std::memcpy(scales + (PANEL + lane) * 4, from.offsets + group, 4);
            }
            for (long k = 0; k < inputs; k += F::STEP) {
                const uint32_t word = word_of<F>(from.codes + output * inputs + k, inputs - k);
                std::memcpy(panel + At::word(k, lane), &word, 4);
            }
        }
    });
}
