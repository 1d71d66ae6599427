// The product of a few rows and a panel of columns, accumulated in registers.
//
// Each element of the product is one lane of one accumulator, and is summed in the order of k, so
// it has the same bits in a tile of any shape.
#pragma once

#include "vec.h"

// Vectors and rows of the largest tile: accumulators, a panel's vectors and one element of `a` fit
// into the registers (32 of AVX-512 and NEON, 16 of AVX2).
#if defined(QUIRE_AVX512)
constexpr int TILE_VECTORS = 2, TILE_ROWS = 12;
#elif defined(QUIRE_AVX2)
constexpr int TILE_VECTORS = 2, TILE_ROWS = 6;
#else
constexpr int TILE_VECTORS = 4, TILE_ROWS = 6;
#endif
constexpr int TILE_COLUMNS = TILE_VECTORS * LANES;

// acc[r][v] += sum over k of a[r * a_row + k * a_k] * b[k * b_k + v * LANES ...].
template <int ROWS, int VECTORS>
INLINE void tile_product(
    vf (&acc)[ROWS][VECTORS],
    const float* a, long a_row, long a_k,
    const float* b, long b_k,
    long size
) {
    for (long k = 0; k < size; k++) {
        vf column[VECTORS];
        for (int v = 0; v < VECTORS; v++) column[v] = load(b + k * b_k + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            vf value = set1(a[r * a_row + k * a_k]);
            for (int v = 0; v < VECTORS; v++) acc[r][v] = fma(value, column[v], acc[r][v]);
        }
    }
}
