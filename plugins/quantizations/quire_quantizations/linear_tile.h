// A tile of a product: some rows of x and one panel, over one block of inputs.
#pragma once

#include "integer_formats.h"

constexpr long LINE = 64;  // bytes of memory that are prefetched at once

struct Tile {
    const float* a;            // rows of x, in the layout of `arrange`
    long rows;
    const InputGroup* groups;  // of integers: of all rows of the tile, group by group
    const uint8_t* packed;     // panel, at the first group of the block
    long size;                 // inputs of the block, a multiple of STEP
    long next;                 // distance of the packed memory to prefetch; 0: none
    const float* bias;         // null before the last block
    float* out;
    long out_row, columns;
    bool continues;  // adds to out
};

typedef void (*Kernel)(const Tile&);

INLINE vf load_bias(const Tile& tile, int v) {
    return tile.bias ? load_some(tile.bias + v * LANES, tile.columns - v * LANES) : zero();
}
INLINE vf load_total(const Tile& tile, long r, int v) {
    const float* out = tile.out + r * tile.out_row + v * LANES;
    return tile.continues ? load_some(out, tile.columns - v * LANES) : zero();
}
INLINE void store_total(const Tile& tile, long r, int v, vf total) {
    float lanes[LANES], *out = tile.out + r * tile.out_row + v * LANES;
    const long count = tile.columns - v * LANES;
    if (count >= LANES) return store(out, total);
    store(lanes, total);
    for (long i = 0; i < count; i++) out[i] = lanes[i];
}
