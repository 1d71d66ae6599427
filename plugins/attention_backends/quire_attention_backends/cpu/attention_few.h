// Attention of a few query rows over many keys, which are read in place: the decode path.
//
// Query rows are processed four at a time, so that each element of K and V is read once for all
// heads of a group. Within a tile of keys, key/value heads are processed in the order of the page,
// and rows one after the other, so that memory is read as two long streams. Data that is read some
// rows later is prefetched at the pace of the computation, because a processor stalls when many
// cache lines are requested at once.
#pragma once

#include "attention_pages.h"
#include "attention_softmax.h"
#include "shuffle.h"

#if defined(QUIRE_AVX2)
constexpr int FEW_SUMS = 8;  // vectors of sums in registers
#else
constexpr int FEW_SUMS = 16;
#endif
constexpr int CHAINS = LANES < 8 ? LANES : 8;  // independent accumulation chains of scores
constexpr long VALUE_KEYS = 8;  // keys whose values are processed while they are in the L1 cache

constexpr long LINE_BYTES = 64;
constexpr long AHEAD_BYTES = 12288;  // distance of the prefetches
constexpr long MAX_AHEAD = FEW_KEYS - 16;  // in rows: the padding rows of a tile are read, too
static_assert(LANES <= 16 && MAX_AHEAD % VALUE_KEYS == 0, "");

// The rows of one head for the keys of a tile, and the rows that are read next. Both lists are
// padded to FEW_KEYS with their last row.
template <class Kind>
struct Stream {
    typedef typename Kind::Element Element;
    const Element* const* rows;
    const Element* const* next;
    long head, next_head;  // offset of the head's rows from those of the item's first head
    long count, ahead;  // rows

    // The rows to prefetch when rows are read from j on.
    const Element* const* fetched(long j) const {
        return j + ahead < count ? rows + j + ahead : next + j + ahead - count;
    }
    long fetched_head(long j) const { return j + ahead < count ? head : next_head; }
};

template <class Kind>
constexpr int SLOT_BYTES = LANES * (int)sizeof(typename Kind::Element);
template <class Kind>
constexpr int SLOTS_A_LINE = SLOT_BYTES<Kind> < LINE_BYTES ? LINE_BYTES / SLOT_BYTES<Kind> : 1;

// Computes products[r * LANES / ROWS + first + i] for CHAINS / ROWS keys; lanes are not summed yet.
template <class Kind, int ROWS>
INLINE void multiply_keys(vf (&products)[LANES], int first, const float* q, const Sizes& sizes,
                          const Stream<Kind>& keys, long at) {
    typedef typename Kind::Element Element;
    constexpr int KEYS = CHAINS / ROWS;
    const Element* const* fetched_rows = keys.fetched(at);
    const long fetched_head = keys.fetched_head(at), row = sizes.row;
    const Element *key[KEYS], *fetched[KEYS];
    for (int i = 0; i < KEYS; i++) {
        key[i] = keys.rows[at + i] + keys.head;
        fetched[i] = fetched_rows[i] + fetched_head;
    }
    vf found[ROWS][KEYS] = {};
    auto add = [&](const float* queries, long offset) __attribute__((always_inline)) {
        vf value[KEYS];
#pragma GCC unroll 8
        for (int i = 0; i < KEYS; i++) value[i] = Kind::read(key[i] + offset);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            vf query = load(queries + r * row);
#pragma GCC unroll 8
            for (int i = 0; i < KEYS; i++) found[r][i] = fma(value[i], query, found[r][i]);
        }
    };
    const long whole = sizes.D / LANES * LANES;
    for (long offset = 0; offset < whole; offset += LANES) {
        if (SLOTS_A_LINE<Kind> == 1 || offset % (SLOTS_A_LINE<Kind> * LANES) == 0)
            for (int i = 0; i < KEYS; i++) __builtin_prefetch(fetched[i] + offset);
        add(q + offset, offset);
    }
    if (whole < sizes.D) add(q + whole, sizes.offset(whole / LANES));
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < KEYS; i++) products[r * (LANES / ROWS) + first + i] = found[r][i];
}

// scores[r][j] = q[r] . keys[j] for ROWS rows; q is in slots that count no element twice.
template <class Kind, int ROWS>
void score_few(float* scores, const float* q, const Sizes& sizes, const Stream<Kind>& keys) {
    constexpr int KEYS = LANES / ROWS;
    for (long j = 0; j < keys.count; j += KEYS) {
        vf products[LANES];  // [row][key]
#pragma GCC unroll 8
        for (int first = 0; first < KEYS; first += CHAINS / ROWS)
            multiply_keys<Kind, ROWS>(products, first, q, sizes, keys, j + first);
        float found[LANES];
        store(found, sums(products));
        for (int r = 0; r < ROWS; r++)
            std::memcpy(scores + r * FEW_KEYS + j, found + r * KEYS, KEYS * sizeof(float));
    }
}

// Keeps an address in one register; the instructions that use it add constant offsets.
template <class Element>
INLINE void one_address(const Element*& address) {
    asm("" : "+r"(address));
}

// sum[r] = sum[r] * factors[r] + weights[r] . values, for a range of keys and WIDTH slots from
// `slot` on.
template <class Kind, int ROWS, int WIDTH>
INLINE void add_slots(float* sum, const float* factors, const float* weights, const Sizes& sizes,
                      const Stream<Kind>& values, long begin, long end, long slot) {
    const long row = sizes.row, offset = slot * LANES, last = sizes.offset(slot + WIDTH - 1);
    float* out = sum + offset;
    vf sums[ROWS][WIDTH];
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++)
            sums[r][i] = load(out + r * row + i * LANES) * set1(factors[r]);
    const typename Kind::Element* const* fetched_rows = values.fetched(begin);
    const long fetched_at = values.fetched_head(begin) + offset;
    for (long j = begin; j < end; j++) {
        const typename Kind::Element *elements = values.rows[j] + values.head,
                                     *from = elements + offset,
                                     *fetched = fetched_rows[j - begin] + fetched_at;
        one_address(from), one_address(fetched);
        vf value[WIDTH];
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++) {
            if (i % SLOTS_A_LINE<Kind> == 0) __builtin_prefetch(fetched + i * LANES);
            value[i] = Kind::read(i < WIDTH - 1 ? from + i * LANES : elements + last);
        }
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            vf weight = set1(weights[r * FEW_KEYS + j]);
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) sums[r][i] = fma(weight, value[i], sums[r][i]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++) store(out + r * row + i * LANES, sums[r][i]);
}

// The same for all slots from `slot` on, in the largest groups that fit.
template <class Kind, int ROWS, int WIDTH>
INLINE void add_row_ends(float* sum, const float* factors, const float* weights,
                         const Sizes& sizes, const Stream<Kind>& values, long begin, long end,
                         long slot) {
    for (; slot + WIDTH <= sizes.slots; slot += WIDTH)
        add_slots<Kind, ROWS, WIDTH>(sum, factors, weights, sizes, values, begin, end, slot);
    if constexpr (WIDTH > 1)
        if (slot < sizes.slots)
            add_row_ends<Kind, ROWS, WIDTH / 2>(
                sum, factors, weights, sizes, values, begin, end, slot);
}

// The same for all keys of a tile, in small groups, so that rows are read one after the other.
template <class Kind, int ROWS>
void add_values(float* sum, const float* factors, const float* weights, const Sizes& sizes,
                const Stream<Kind>& values) {
    constexpr int WIDTH = FEW_SUMS / ROWS;
    const float ones[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    for (long j = 0; j < values.count; j += VALUE_KEYS)
        add_row_ends<Kind, ROWS, WIDTH>(sum, j ? ones : factors, weights, sizes, values, j,
                                        std::min(j + VALUE_KEYS, values.count), 0);
}

// Turns the scores of a row into softmax weights; the visible keys are [first, last), and the query
// is at `query`, relative to the tile. Returns the factor by which the row's sum must be multiplied.
template <class Kind>
float weigh_few(float* scores, const Layer& layer, const float* k_scales, const float* v_scales,
                long count, long first, long last, float slope, long query, float& largest,
                float& total) {
    if (std::max(0L, first) >= last) {  // no visible key
        std::fill(scores, scores + rounded_up(count, LANES), 0.0f);
        return 1.0f;
    }
    vf most = set1(largest);
    for (long j = 0; j < count; j += LANES) {
        vf score = load(scores + j);
        if (Kind::HAS_ROW_SCALES) score = score * load(k_scales + j);
        if (layer.cap != 0.0f) score = set1(layer.cap) * tanh_of(score);
        if (slope != 0.0f) score = score + linear_bias(slope, j, query);
        if (j < first || j + LANES > last) score = hide_outside(score, j, first, last);
        most = max(score, most);
        store(scores + j, score);
    }
    float now = largest_lane(most), factor = rescaling(largest, now);
    vf weights = zero();
    for (long j = 0; j < count; j += LANES) {
        vf weight = power_of_two(load(scores + j) - set1(now));
        weights = weights + weight;
        if (Kind::HAS_ROW_SCALES) weight = weight * load(v_scales + j);
        store(scores + j, weight);
    }
    largest = now;
    total = total * factor + sum_of_lanes(weights);
    return factor;
}

// Copies an item's queries, scaled, into slots; the last slot has zeros where it overlaps the one
// before.
inline void take_few(float* out, const Work& work, const Item& item) {
    const Sizes& sizes = work.sizes;
    const long whole = sizes.D / LANES;
    for (long r = 0; r < item.all_rows(); r++, out += sizes.row) {
        const float* q = work.query(item, r);
        for (long i = 0; i < whole * LANES; i++) out[i] = q[i] * work.layer.scale;
        if (whole == sizes.slots) continue;
        float* last = out + whole * LANES;
        std::fill(last, last + LANES, 0.0f);
        for (long i = whole * LANES; i < sizes.D; i++)
            last[i - sizes.offset(whole)] = q[i] * work.layer.scale;
    }
}

// The rows of K and V of a tile of keys.
template <class Kind>
struct FewTile {
    Rows<Kind> keys, values;
    long at, count;

    void find(const Pages<Kind>& pages, const int32_t* table, const Item& item, long from) {
        at = from, count = std::min(FEW_KEYS, item.end - from);
        if (count <= 0) return;
        keys.find_numbers(pages, table, 0, item.head, at, count, FEW_KEYS);
        values.find_numbers(pages, table, 1, item.head, at, count, FEW_KEYS);
    }
    void find_scales(long head) {
        if (!Kind::HAS_ROW_SCALES) return;
        keys.find_scales(head, count, FEW_KEYS);
        values.find_scales(head, count, FEW_KEYS);
    }
};

// Computes ROWS rows of one head; `row` is an index among the rows of all heads of the item.
template <class Kind, int ROWS>
void attend_few_rows(const Work& work, const Scratch& scratch, const State& state,
                     const Item& item, long row, const FewTile<Kind>& tile,
                     const Stream<Kind>& keys, const Stream<Kind>& values) {
    const Sizes& sizes = work.sizes;
    float factors[ROWS];
    score_few<Kind, ROWS>(scratch.scores, scratch.q + row * sizes.row, sizes, keys);
    for (int r = 0; r < ROWS; r++) {
        long position = work.position(item, (row + r) % item.num_rows);
        factors[r] = weigh_few<Kind>(
            scratch.scores + r * FEW_KEYS, work.layer, tile.keys.scales, tile.values.scales,
            tile.count, work.first_key(position) - tile.at,
            std::min(position + 1 - tile.at, tile.count), work.slope(item, row + r),
            position - tile.at, state.largest[row + r], state.total[row + r]);
    }
    add_values<Kind, ROWS>(state.sum + row * sizes.row, factors, scratch.scores, sizes, values);
}

// Computes all rows of one head.
template <class Kind>
void attend_few_head(const Work& work, const Scratch& scratch, const State& state,
                     const Item& item, long head, const FewTile<Kind>& tile, Stream<Kind> keys,
                     Stream<Kind> values) {
    long row = head * item.num_rows, end = row + item.num_rows;
    while (row < end) {
        long left = end - row;
        if (left >= 4)
            attend_few_rows<Kind, 4>(work, scratch, state, item, row, tile, keys, values);
        else if (left >= 2)
            attend_few_rows<Kind, 2>(work, scratch, state, item, row, tile, keys, values);
        else
            attend_few_rows<Kind, 1>(work, scratch, state, item, row, tile, keys, values);
        row += left >= 4 ? 4 : left >= 2 ? 2 : 1;
        keys.next = keys.rows, keys.next_head = keys.head;  // already prefetched
        values.next = values.rows, values.next_head = values.head;
    }
}

template <class Kind>
void attend_few(const Work& work, const Scratch& scratch, const State& state, const Item& item) {
    const Pages<Kind> pages(work);
    const int32_t* table = work.table(item);
    const long row_bytes = pages.D * (long)sizeof(typename Kind::Element);
    const long ahead =
        std::min(MAX_AHEAD, rounded_up(std::max(1L, AHEAD_BYTES / row_bytes), VALUE_KEYS));
    const long distance = pages.block_size * pages.D;  // between heads
    FewTile<Kind> tiles[2];
    take_few(scratch.q, work, item);
    tiles[0].find(pages, table, item, item.begin);
    for (int index = 0; tiles[index].count > 0; index ^= 1) {
        FewTile<Kind>&tile = tiles[index], &after = tiles[index ^ 1];
        after.find(pages, table, item, tile.at + tile.count);
        const auto* after_rows = after.count > 0 ? after.keys.elements : tile.keys.elements;
        for (long head = 0; head < item.num_heads; head++) {
            bool is_last = head + 1 == item.num_heads;
            long here = head * distance;
            tile.find_scales(head);
            Stream<Kind> keys = {tile.keys.elements, tile.values.elements, here, here, tile.count,
                                 ahead};
            Stream<Kind> values = {tile.values.elements, is_last ? after_rows : tile.keys.elements,
                                   here, is_last ? 0 : here + distance, tile.count, ahead};
            attend_few_head<Kind>(work, scratch, state, item, head, tile, keys, values);
        }
    }
}
