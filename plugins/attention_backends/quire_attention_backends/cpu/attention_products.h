// Products of query rows with K, and of softmax weights with V: in float32, or by pairs of bfloat16.
//
// A word has STEP adjacent factors: elements of a row of q and K, or weights and values of adjacent
// keys. A vector has LANES words, which SLOT = STEP * LANES elements of a row fill.
#pragma once

#include <algorithm>

#include "attention_elements.h"
#include "attention_powers.h"
#include "shuffle.h"

// Float32 products of decoded elements.
template <class Kind>
struct Products {
    typedef typename Kind::Element Element;
    typedef float Word;
    typedef vf Words;
    static constexpr long STEP = 1, SLOT = LANES;

    INLINE Words load_words(const Word* p) { return load(p); }
    INLINE Words repeat(const Word* p) { return set1(*p); }
    INLINE Words read_row(const Element* p) { return Kind::read(p); }
    // Reads elements of the STEP rows as STEP vectors, each with words of adjacent keys.
    INLINE void read_rows(Words (&out)[1], const Element* row, const Element*) {
        out[0] = Kind::read(row);
    }
    INLINE vf add(Words a, Words b, vf sum) { return fma(a, b, sum); }
    INLINE Words pack(const vf (&x)[1]) { return x[0]; }
    INLINE vf maxima(vf largest) { return largest; }
    INLINE vf weight(vf score, vf maximum) { return power_of_two(score - maximum); }
    INLINE vf add_weights(vf sum, const vf (&weights)[1], Words) { return sum + weights[0]; }
    // Brings sums over the vectors of `read_rows` into the order of the elements.
    INLINE void order(vf (&)[1]) {}
};

#if defined(QUIRE_AVX512) && (defined(__clang__) || __GNUC__ >= 10)
#define QUIRE_PAIRS 1

// Rows of bfloat16 that are multiplied without decoding, by pairs of elements or of keys. q and the
// weights are rounded to bfloat16 too; sums are in float32. Requires a processor with avx512_bf16.
struct BFloat16Pairs : BFloat16 {};

// The instructions are in assembly, so that the compiler uses them nowhere else.
template <>
struct Products<BFloat16Pairs> {
    typedef uint16_t Element;
    typedef uint32_t Word;
    typedef vi Words;
    static constexpr long STEP = 2, SLOT = 2 * LANES;

    INLINE Words load_words(const void* p) {
        vi words;
        std::memcpy(&words, p, sizeof words);
        return words;
    }
    INLINE Words repeat(const Word* p) {
        int32_t word;
        std::memcpy(&word, p, sizeof word);
        return set1i(word);
    }
    INLINE Words read_row(const Element* p) { return load_words(p); }
    INLINE void read_rows(Words (&out)[2], const Element* first, const Element* second) {
        __m512i a = (__m512i)load_words(first), b = (__m512i)load_words(second);
        out[0] = (vi)_mm512_unpacklo_epi16(a, b), out[1] = (vi)_mm512_unpackhi_epi16(a, b);
    }
    INLINE vf add(Words a, Words b, vf sum) {
        asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
        return sum;
    }
    INLINE Words pack(const vf (&x)[2]) {
        vi words;
        asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(words) : "v"(x[0]), "v"(x[1]));
        return words;
    }
    // Weights are relative to a whole power of two, so that they are rounded alike in all tiles.
    INLINE vf maxima(vf largest) {
        return (vf)_mm512_roundscale_ps((__m512)largest, _MM_FROUND_TO_POS_INF);
    }
    INLINE vf weight(vf score, vf maximum) { return power_of_difference(score, maximum); }
    INLINE vf add_weights(vf sum, const vf (&)[2], Words rounded) {
        return add(rounded, set1i(0x3f803f80), sum);  // pairs of one
    }
    INLINE void order(vf (&sums)[2]) {  // unpacking took four elements each from 16 bytes
        const __m512i first = _mm512_setr_epi32(
            0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
        __m512 low = (__m512)sums[0], high = (__m512)sums[1];
        sums[0] = (vf)_mm512_permutex2var_ps(low, first, high);
        sums[1] = (vf)_mm512_permutex2var_ps(low, second, high);
    }
};
#endif

// The layout of a row for products of a kind: slots, the last of which ends with the row and
// overlaps the one before. Rows shorter than a slot are padded with zeros.
template <class Kind>
struct Slots {
    static constexpr long SLOT = Products<Kind>::SLOT;
    static long count(long D) { return (D + SLOT - 1) / SLOT; }
    static long offset(long D, long slot) { return std::max(0L, std::min(slot * SLOT, D - SLOT)); }
};
