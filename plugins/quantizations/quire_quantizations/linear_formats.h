// Layout of a packed weight: panels of outputs, each with groups of inputs, scales before codes.
//
//     panel of PANEL outputs   [ scales | codes of GROUP inputs ][ scales | codes ] ...
//
// A word has the codes of STEP consecutive inputs of one output, and a vector of words those of
// LANES outputs: `write` makes it from the values of STEP inputs, [STEP, PANEL]. The last group
// ends at the last input, rounded up to STEP with codes of zero.
#pragma once

#include "tile.h"

typedef uint32_t vu __attribute__((vector_size(LANES * 4)));

constexpr long PANEL = TILE_COLUMNS;
constexpr long ALIGNMENT = 64;
constexpr long BLOCK = 256;  // inputs; a multiple of every group

INLINE long round_up(long size, long unit) { return (size + unit - 1) / unit * unit; }
INLINE long divided(long size, long unit) { return (size + unit - 1) / unit; }

INLINE vu load_words(const uint8_t* p) {
    vu words;
    std::memcpy(&words, p, sizeof words);
    return words;
}
INLINE uint32_t load_word(const uint8_t* p) {
    uint32_t word;
    std::memcpy(&word, p, sizeof word);
    return word;
}
INLINE void store_words(uint8_t* p, vu words) { std::memcpy(p, &words, sizeof words); }

// Bits of the nearest bfloat16, ties to even; NaN stays NaN.
INLINE vu bf16_words(vf v) {
    vu word = (vu)v, rounded = (word + 0x7fff + ((word >> 16) & 1)) >> 16;
    return v != v ? (word >> 16) | 0x40 : rounded;
}

INLINE vf load_some_bf16(const uint16_t* p, long count) {
    if (count >= LANES) return load_bf16(p);
    float lanes[LANES] = {};
    for (long i = 0; i < count; i++) lanes[i] = from_bf16(p[i]);
    return load(lanes);
}

INLINE vf load_some_f16(const uint16_t* p, long count) {
    if (count >= LANES) return load_f16(p);
    float lanes[LANES] = {};
    for (long i = 0; i < count; i++) lanes[i] = from_f16(p[i]);
    return load(lanes);
}

// Sums of products, and elements of x, of formats that multiply float32.
struct FloatProducts {
    static constexpr bool IS_INTEGER = false, IS_BF16 = false;
    static constexpr bool HAS_OFFSETS = false, HAS_ORDER = false;
    static constexpr long SCALE_WIDTH = 2;  // bytes of a scale and an offset
    typedef vf Sum;
    INLINE vf broadcast(const float* p) { return set1(*p); }
    INLINE vf rounded(vf inputs) { return inputs; }
};

INLINE vf load_some(const float* p, long count) {
    if (count >= LANES) return load(p);
    float lanes[LANES] = {};
    for (long i = 0; i < count; i++) lanes[i] = p[i];
    return load(lanes);
}

template <class F>
INLINE vf add_product(F, vf value, vf column, vf sum) {
    return fma(value, column, sum);
}

// Float of a small unsigned integer, minus `offset`: exact, without a conversion.
INLINE vf offset_float(vu integer, float offset) {
    const float power = 8388608.0f;  // 2^23, whose last bit is worth 1
    return (vf)(integer | 0x4b000000u) - set1(power + offset);
}

struct Float32 : FloatProducts {
    static constexpr long STEP = 1, GROUP = BLOCK, WORD_BYTES = 4;
    static constexpr long SLOT = 1;  // inputs per element of x
    static constexpr bool SCALED = false;
    typedef vf Words;
    INLINE Words load_codes(const uint8_t* p) { return load((const float*)p); }
    INLINE vf value(Words words, int) { return words; }
    static float read(const uint8_t* word, int) {
        float x;
        std::memcpy(&x, word, sizeof x);
        return x;
    }
    INLINE void write(uint8_t* words, const float* x) { store((float*)words, load(x)); }
};

struct BFloat16 : FloatProducts {
    static constexpr bool IS_BF16 = true;
    static constexpr long STEP = 2, GROUP = BLOCK, WORD_BYTES = 4;
    static constexpr long SLOT = 1;  // inputs per element of x
    static constexpr bool SCALED = false;
    typedef vu Words;
    INLINE Words load_codes(const uint8_t* p) { return load_words(p); }
    INLINE vf value(Words words, int j) { return (vf)(j ? words & 0xffff0000u : words << 16); }
    static float read(const uint8_t* word, int j) {
        return from_bf16((uint16_t)(load_word(word) >> (16 * j)));
    }
    INLINE void write(uint8_t* words, const float* x) {
        store_words(words, bf16_words(load(x)) | bf16_words(load(x + PANEL)) << 16);
    }
};

struct Float16 : FloatProducts {
    static constexpr long STEP = 1, GROUP = BLOCK, WORD_BYTES = 2;
    static constexpr long SLOT = 1;  // inputs per element of x
    static constexpr bool SCALED = false;
    typedef vf Words;
    INLINE Words load_codes(const uint8_t* p) { return load_f16((const uint16_t*)p); }
    INLINE vf value(Words words, int) { return words; }
    static float read(const uint8_t* word, int) {
        uint16_t half;
        std::memcpy(&half, word, sizeof half);
        return from_f16(half);
    }
    INLINE void write(uint8_t* words, const float* x) { store_f16((uint16_t*)words, load(x)); }
};

#if defined(QUIRE_AVX512) && (defined(__clang__) || __GNUC__ >= 10)
#define QUIRE_PAIRS 1
// Bits of two adjacent elements in one word: half as many words.
typedef uint64_t vu_two __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu_half __attribute__((vector_size(LANES * 2)));
INLINE vu_half pairs(vf values) {
    vu_two words = (vu_two)bf16_words(values);
    return __builtin_convertvector(words | words >> 16, vu_half);
}
// sum + the products of both numbers of each pair. Assembly, so that the compiler does not use this
// instruction anywhere else.
INLINE vf add_pairs(vf value, vf column, vf sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(value), "v"(column));
    return sum;
}
// Same memory as BFloat16, but words are multiplied without decoding, by pairs of inputs that are
// rounded to bfloat16 too. Requires a processor with avx512_bf16.
struct BFloat16Pairs : FloatProducts {
    static constexpr long STEP = 1, GROUP = BLOCK / 2, WORD_BYTES = 4;  // in pairs of inputs
    static constexpr long SLOT = 2;  // inputs per element of x
    static constexpr bool SCALED = false;
    typedef vf Words;
    INLINE Words load_codes(const uint8_t* p) { return load((const float*)p); }
    INLINE vf value(Words words, int) { return words; }
    // Elements of x of two vectors of inputs.
    INLINE vf paired(vf first, vf second) {
        __m512i both = _mm512_castsi256_si512((__m256i)pairs(first));
        return (vf)_mm512_inserti64x4(both, (__m256i)pairs(second), 1);
    }
};
INLINE vf add_product(BFloat16Pairs, vf value, vf column, vf sum) {
    return add_pairs(value, column, sum);
}
#endif

// Stored codes are unsigned: the code plus OFFSET.
struct Int8 : FloatProducts {
    static constexpr long STEP = 4, GROUP = 128, WORD_BYTES = 4;
    static constexpr long SLOT = 1;  // inputs per element of x
    static constexpr bool SCALED = true;
    static constexpr int OFFSET = 128;
    typedef vu Words;
    INLINE Words load_codes(const uint8_t* p) { return load_words(p); }
    INLINE vf value(Words words, int j) { return offset_float(words >> (8 * j) & 255, OFFSET); }
    static float read(const uint8_t* word, int j) {
        return (float)((int)(load_word(word) >> (8 * j) & 255) - OFFSET);
    }
    INLINE void write(uint8_t* words, const float* x) {
        vu all = {};
        for (int j = 0; j < STEP; j++)
            all |= (vu)(__builtin_convertvector(load(x + j * PANEL), vi) + OFFSET) << (8 * j);
        store_words(words, all);
    }
};

// The low halves of a word's bytes have its first four inputs, the high halves the others.
struct Int4 : FloatProducts {
    static constexpr long STEP = 8, GROUP = 32, WORD_BYTES = 4;
    static constexpr long SLOT = 1;  // inputs per element of x
    static constexpr bool SCALED = true;
    static constexpr int OFFSET = 8;
    typedef vu Words;
    static constexpr int shift(int j) { return j % 4 * 8 + j / 4 * 4; }
    INLINE Words load_codes(const uint8_t* p) { return load_words(p); }
    INLINE vf value(Words words, int j) {
#if defined(QUIRE_AVX512)  // the lookup uses the lowest four bits
        const __m512 codes = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
        return (vf)_mm512_permutexvar_ps((__m512i)(words >> shift(j)), codes);
#else
        return offset_float(words >> shift(j) & 15, OFFSET);
#endif
    }
    static float read(const uint8_t* word, int j) {
        return (float)((int)(load_word(word) >> shift(j) & 15) - OFFSET);
    }
    INLINE void write(uint8_t* words, const float* x) {
        vu all = {};
        for (int j = 0; j < STEP; j++)
            all |= (vu)(__builtin_convertvector(load(x + j * PANEL), vi) + OFFSET) << shift(j);
        store_words(words, all);
    }
};

// Offsets in a panel of format F.
template <class F>
struct Layout {
    static constexpr long SCALE_BYTES = F::SCALED ? PANEL * F::SCALE_WIDTH : 0;
    static constexpr long STEP_BYTES = PANEL * F::WORD_BYTES;
    static constexpr long VECTOR_BYTES = LANES * F::WORD_BYTES;
    static constexpr long GROUP_BYTES = SCALE_BYTES + F::GROUP / F::STEP * STEP_BYTES;

    static long panel_bytes(long inputs) {
        long rest = inputs % F::GROUP;
        long bytes = inputs / F::GROUP * GROUP_BYTES;
        if (rest) bytes += SCALE_BYTES + divided(rest, F::STEP) * STEP_BYTES;
        return round_up(bytes, ALIGNMENT);
    }
    static long word(long k, long lane) {  // within a panel
        long group = k / F::GROUP, step = k % F::GROUP / F::STEP;
        return group * GROUP_BYTES + SCALE_BYTES + step * STEP_BYTES + lane * F::WORD_BYTES;
    }
};
