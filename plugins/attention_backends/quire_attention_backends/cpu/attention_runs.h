// Runs of rows of an item in the order in which decode reads them, so that they can be prefetched.
//
// A run has the rows of one head that are adjacent in a block. Within a tile of keys, K is read
// before V, a block after the other, and in a block all heads of the item: two long streams a page.
#pragma once

#include "attention_pages.h"

constexpr long LINE_BYTES = 64;
constexpr long AHEAD_BYTES = 16384;  // distance of the prefetches

// The keys of a run, and its rows of the item's first head.
struct BlockKeys {
    long key, count;  // from the position `key` on
    long block, offset;
};

INLINE BlockKeys block_keys(const int32_t* table, long block_size, long key, long end) {
    long offset = key % block_size;
    return {key, std::min(block_size - offset, end - key), table[key / block_size], offset};
}

// The tile of FEW_KEYS keys at a multiple of it, as far as the item has its keys.
struct KeyTile {
    long start, begin, end;
};
INLINE KeyTile tile_at(const Item& item, long key) {
    long start = key / FEW_KEYS * FEW_KEYS;
    return {start, key, std::min(item.end, start + FEW_KEYS)};
}

template <class Kind>
class Ahead {
public:
    typedef typename Kind::Element Element;

    Ahead(const Pages<Kind>& pages, const int32_t* table, const Item& item)
        : pages(pages), table(table), item(item), tile(tile_at(item, item.begin)),
          key(tile.begin), side(0), head(0) {}

    // Returns the rows of the next run; null behind the last one.
    const Element* next() {
        if (tile.begin >= item.end) return nullptr;
        BlockKeys keys = block_keys(table, pages.block_size, key, tile.end);
        const Element* rows =
            pages.elements(keys.block, pages.row(side, item.head + head) + keys.offset);
        if (++head == item.num_heads) {
            head = 0, key += keys.count;
            if (key == tile.end) {
                if (side == 1) tile = tile_at(item, tile.end);
                side ^= 1, key = tile.begin;
            }
        }
        return rows;
    }

private:
    const Pages<Kind>& pages;
    const int32_t* table;
    const Item& item;
    KeyTile tile;
    long key, side, head;
};
