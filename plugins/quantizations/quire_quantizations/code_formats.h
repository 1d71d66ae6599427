// Formats of weights from quantized checkpoints: codes of 4 or 8 bits, with a float32 scale, and
// perhaps an offset, for each group of inputs of an output:
//
//     weight = value(code) * scale + offset
//
// Scales are those of the checkpoint, so nothing is rounded. The offset of a group is multiplied by
// the sum of its inputs, which is computed as the product begins. The inputs of a group may be
// anywhere in x: the weight has them one after another, and x is read in their order.
#pragma once

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

// Values of 4-bit codes.
struct SignedNumbers {
    INLINE vf value(vu codes) { return offset_float(codes & 15, 8); }
};
struct NormalFloats {  // quantiles of a normal distribution (Dettmers et al., 2023)
    static constexpr float VALUES[16] = {
        -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
        0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f,
    };
    INLINE vf value(vu codes) { return looked_up(VALUES, codes); }
};
struct SmallFloats {  // e2m1
    static constexpr float VALUES[16] = {
        0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f,
        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f,
    };
    INLINE vf value(vu codes) { return looked_up(VALUES, codes); }
};

// Values of 8-bit codes.
struct SignedBytes {
    INLINE vf value(vu codes) { return offset_float(codes, 128); }
};
struct ByteFloats {  // e4m3, without NaN
    INLINE vf value(vu codes) {
        const vu magnitude = codes & 0x7f;
        const vf normal = (vf)((magnitude << 20) + (120u << 23));
        const vf small = normal + normal - set1(0.015625f);  // exponent 0: no hidden bit
        const vf found = magnitude < 8 ? small : normal;
        return (vf)((vu)found | (codes & 0x80) << 24);
    }
};

template <long SIZE, bool OFFSETS>
struct CodeProducts : FloatProducts {
    static constexpr bool SCALED = true, HAS_OFFSETS = OFFSETS, HAS_ORDER = true;
    static constexpr long GROUP = SIZE, WORD_BYTES = 4, SLOT = 1, SCALE_WIDTH = OFFSETS ? 8 : 4;
    typedef vu Words;
    INLINE Words load_codes(const uint8_t* p) { return load_words(p); }
};

template <class Values, long SIZE, bool OFFSETS = false>
struct Codes4 : CodeProducts<SIZE, OFFSETS> {
    static constexpr long STEP = 8;
    static constexpr int shift(int j) { return Int4::shift(j); }
    INLINE vf value(vu words, int j) { return Values::value(words >> shift(j)); }
    static float read(const uint8_t* word, int j) { return value(load_word(word) - vu{}, j)[0]; }
};

template <class Values, long SIZE, bool OFFSETS = false>
struct Codes8 : CodeProducts<SIZE, OFFSETS> {
    static constexpr long STEP = 4;
    static constexpr int shift(int j) { return 8 * j; }
    INLINE vf value(vu words, int j) { return Values::value(words >> shift(j) & 255); }
    static float read(const uint8_t* word, int j) { return value(load_word(word) - vu{}, j)[0]; }
};

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
