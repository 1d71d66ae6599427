// Products by AMX: one instruction multiplies 16 rows of x by 16 words of each of 16 outputs.
//
// Packed weights and arranged rows of x are in its layout already. In a panel, 16 steps are 16 rows
// of words; a chunk of a row of x is 16 elements. A matrix register (Intel: tile) has 16 rows of 64
// bytes. Two of them hold words, one or two hold rows of x, and the sums are in the others:
//
//                          words of outputs 0..15, of 16..31
//                                       W       W + 1
//     rows of x  0..15  X               0         1
//               16..31  X + 1           2         3
//
// All rows of a register are computed. Those behind the last row of x read what follows in memory,
// and their sums are dropped. So each row is computed in the same way, whatever their number is.
// Sums of integers are exact, with the bits of the other instructions. Products of bfloat16 are
// added in an order of AMX's own (Intel's manual, TDPBF16PS): within 32 inputs those of even inputs
// and those of odd ones, then both, and that to the sum.
#pragma once

#include <type_traits>

#include "amx_instructions.h"
#include "linear_tile.h"

#if defined(QUIRE_AMX) && defined(QUIRE_PAIRS)
#define QUIRE_MATRICES 1
#endif

// A format whose words are multiplied by AMX.
template <class Words>
struct InMatrices : Words {};

template <class F>
constexpr bool IN_MATRICES = false;
template <class Words>
constexpr bool IN_MATRICES<InMatrices<Words>> = true;

constexpr long MATRIX_ROWS = 16, MATRIX_TILE_ROWS = 2 * MATRIX_ROWS;

// Elements that may be read behind the arranged rows.
template <class F>
constexpr long ELEMENTS_BEHIND = IN_MATRICES<F> ? MATRIX_ROWS * 16 : 0;

// Lets the thread use matrix registers while it exists.
template <class F>
struct MatrixUse {
    MatrixUse() {}
};

#if defined(QUIRE_MATRICES)
template <class Words>
struct MatrixUse<InMatrices<Words>> {
    MatrixUse() { matrices::begin(); }
    ~MatrixUse() { matrices::end(); }
    MatrixUse(const MatrixUse&) = delete;
    MatrixUse& operator=(const MatrixUse&) = delete;
};

// A tile of at most BLOCKS * MATRIX_ROWS rows.
template <class F, int BLOCKS>
struct MatrixProduct {
    static constexpr int ROWS = BLOCKS * MATRIX_ROWS, VECTORS = TILE_VECTORS;
    static constexpr long WORDS = MATRIX_ROWS, ELEMENTS = 16;  // of an output, of a row of x
    static constexpr long STEP_BYTES = Layout<F>::STEP_BYTES, SUM_BYTES = VECTORS * sizeof(vf);
    static constexpr int X = 4, W = 6;  // registers
    static_assert(F::STEP == 1 && F::GROUP % WORDS == 0 && LANES == 16 && VECTORS == 2, "");

    struct alignas(ALIGNMENT) Sums {
        vf rows[ROWS][VECTORS];
    };

    static void run(const Tile& tile) {
        Sums total;
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++)
                total.rows[r][v] = r < tile.rows ? load_total(tile, r, v) : zero();
        const uint8_t* group = tile.packed;
        if constexpr (F::IS_INTEGER) {
            for (long k = 0; k < tile.size; k += F::GROUP, group += Layout<F>::GROUP_BYTES)
                add_group(total, tile, group, k);
        } else {
            for_each_sum(total, [](auto at, vf* rows) { matrices::load<at>(rows, SUM_BYTES); });
            add_products(total, tile, tile.packed, 0, tile.size);
        }
        for (int v = 0; v < VECTORS; v++) {
            const vf bias = load_bias(tile, v);
            for (int r = 0; r < tile.rows; r++) {
                const vf sum = total.rows[r][v];
                store_total(tile, r, v, tile.bias ? sum + bias : sum);
            }
        }
    }

    INLINE void add_group(Sums& total, const Tile& tile, const uint8_t* group, long k) {
        const long rest = tile.size - k, size = rest < F::GROUP ? rest : F::GROUP;
        const InputGroup* groups = tile.groups + k / F::GROUP * tile.rows;
        Sums sums;
        for_each_sum(sums, [](auto at, vf*) { matrices::clear<at>(); });
        add_products(sums, tile, group + Layout<F>::SCALE_BYTES, k, size);
        for (int v = 0; v < VECTORS; v++) {
            const vf scale = load_bf16((const uint16_t*)group + v * LANES);
            for (int r = 0; r < tile.rows; r++) {
                const vi sum = bits(sums.rows[r][v]) + set1i(groups[r].correction);
                const vf product = to_float(sum) * scale;
                total.rows[r][v] = fma(product, set1(groups[r].scale), total.rows[r][v]);
            }
        }
    }

    // Adds the products of `size` elements from `begin` on to the registers' sums, and stores these.
    INLINE void add_products(
        Sums& sums, const Tile& tile, const uint8_t* words, long begin, long size
    ) {
        const float* a = tile.a + begin * tile.rows;
        for (; size >= WORDS; size -= WORDS, a += ELEMENTS * tile.rows, words += WORDS * STEP_BYTES) {
            if (tile.next)
                for (long line = 0; line < WORDS * STEP_BYTES; line += LINE)
                    __builtin_prefetch(words + tile.next + line);
            add_words(a, words);
        }
        if (size > 0) {  // behind these words are others, or nothing
            alignas(ALIGNMENT) uint8_t last[WORDS * STEP_BYTES] = {};
            std::memcpy(last, words, size * STEP_BYTES);
            add_words(a, last);
        }
        for_each_sum(sums, [](auto at, vf* rows) { matrices::store<at>(rows, SUM_BYTES); });
    }

    INLINE void add_words(const float* a, const uint8_t* words) {
        constexpr long ROW_BYTES = ELEMENTS * sizeof(float);
        matrices::load<W>(words, STEP_BYTES);
        matrices::load<W + 1>(words + STEP_BYTES / 2, STEP_BYTES);
        matrices::load<X>(a, ROW_BYTES);
        multiply<0, X, W>();
        multiply<1, X, W + 1>();
        if constexpr (BLOCKS == 2) {
            matrices::load<X + 1>(a + MATRIX_ROWS * ELEMENTS, ROW_BYTES);
            multiply<2, X + 1, W>();
            multiply<3, X + 1, W + 1>();
        }
    }

    template <int SUMS, int ROWS_OF_X, int COLUMNS>
    INLINE void multiply() {
        if constexpr (F::IS_INTEGER)
            matrices::add_bytes<SUMS, ROWS_OF_X, COLUMNS>();
        else
            matrices::add_pairs<SUMS, ROWS_OF_X, COLUMNS>();
    }

    // Calls work(register, its first row of sums) for the registers of sums.
    template <class Work>
    INLINE void for_each_sum(Sums& sums, const Work& work) {
        work(std::integral_constant<int, 0>(), &sums.rows[0][0]);
        work(std::integral_constant<int, 1>(), &sums.rows[0][1]);
        if constexpr (BLOCKS == 2) {
            work(std::integral_constant<int, 2>(), &sums.rows[MATRIX_ROWS][0]);
            work(std::integral_constant<int, 3>(), &sums.rows[MATRIX_ROWS][1]);
        }
    }
};
#endif

template <class F>
Kernel matrix_kernel(long rows) {
#if defined(QUIRE_MATRICES)
    return rows > MATRIX_ROWS ? MatrixProduct<F, 2>::run : MatrixProduct<F, 1>::run;
#else
    return nullptr;
#endif
}
