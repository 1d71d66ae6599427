// Runs of rows in the order in which decode reads them, so that they can be prefetched: those of an
// item, and then those of the item that follows in the list.
//
// A run has the rows of one head that are adjacent in a block. Within a tile of keys, K is read
// before V, a block after the other, and in a block all heads of the item: two long streams a page.
#pragma once

#include "attention_pages.h"

constexpr long LINE_BYTES = 64;
constexpr long AHEAD_BYTES = 32768;  // distance of the first prefetches
constexpr long MAX_AHEAD = 32;  // the same in runs
// Each line is prefetched at this distance, at half of it, at a quarter and so on: processors drop
// prefetches while their buffers of misses are full. The fewer rows are multiplied by a key, the
// faster lines are asked for, and the more prefetches are dropped.
constexpr int PREFETCHES = 4;
constexpr int prefetches(int rows) { return rows < 4 ? PREFETCHES : PREFETCHES - 1; }

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

    // `following` may be null.
    Ahead(const Work& work, const Pages<Kind>& pages, const Item& item, const Item* following)
        : work(work), pages(pages), following(following) {
        begin(item);
    }

    // Returns the rows of the next run; null behind the last one.
    const Element* next() {
        if (tile.begin >= item.end) {
            if (!following) return nullptr;
            begin(*following), following = nullptr;
        }
        if (head == 0) find_block();
        const Element* rows = pages.elements(keys.block, first_row + head * pages.block_size);
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
    static constexpr long LINE_SCALES = LINE_BYTES / (long)sizeof(float);
    const Work& work;
    const Pages<Kind>& pages;
    const Item* following;
    Item item;
    const int32_t* table;
    KeyTile tile;
    BlockKeys keys;
    long first_row, key, side, head;

    void begin(const Item& first) {
        item = first, table = work.table(item), tile = tile_at(item, item.begin);
        key = tile.begin, side = 0, head = 0;
    }

    // Finds the runs of the next block, and prefetches their scales.
    void find_block() {
        keys = block_keys(table, pages.block_size, key, tile.end);
        first_row = pages.row(side, item.head) + keys.offset;
        if (!Kind::HAS_ROW_SCALES) return;
        const long last = first_row + (item.num_heads - 1) * pages.block_size + keys.count - 1;
        for (long row = first_row; row <= last; row += LINE_SCALES)
            __builtin_prefetch(pages.scale(keys.block, row), 0, 2);
    }
};

// The distances in bytes from a run to those that are prefetched while it is read.
struct Distances {
    long bytes[PREFETCHES];
    bool are_none() const { return !bytes[0]; }
};

// The runs that follow the one that is read.
template <class Kind>
class Upcoming {
public:
    typedef typename Kind::Element Element;

    Upcoming(const Work& work, const Pages<Kind>& pages, const Item& item, const Item* following)
        : ahead(work, pages, item, following), at(0) {
        const long run_bytes =
            std::min(pages.block_size, FEW_KEYS) * pages.D * (long)sizeof(Element);
        const long wanted = AHEAD_BYTES / run_bytes;
        num_ahead = std::max(1L, std::min(MAX_AHEAD, wanted));
        for (long run = 0; run < num_ahead; run++) runs[run] = ahead.next();
    }

    // Moves on to the next run, which begins at `rows`.
    Distances next(const Element* rows) {
        runs[(at + num_ahead) % RUNS] = ahead.next();
        Distances found;
        for (int i = 0; i < PREFETCHES; i++) {
            const Element* later = runs[(at + (num_ahead >> i)) % RUNS];
            found.bytes[i] = later ? (const char*)later - (const char*)rows : 0;
        }
        at++;
        return found;
    }

private:
    static constexpr long RUNS = 2 * MAX_AHEAD;
    Ahead<Kind> ahead;
    const Element* runs[RUNS];
    long at, num_ahead;
};
