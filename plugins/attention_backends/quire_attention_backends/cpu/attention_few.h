// Attention of a few query rows over many keys, which are read in place: the decode path.
//
// Query rows are processed four at a time, so that each element of K and V is read once for all
// heads of a group. Data that is read some runs later is prefetched into the L2 cache at the pace
// of the computation: the buffers of misses of the L1 cache are too few for the memory's latency.
#pragma once

#include "attention_runs.h"
#include "attention_softmax.h"

#if defined(QUIRE_AVX2)
constexpr int FEW_SUMS = 8;  // vectors of sums in registers
#else
constexpr int FEW_SUMS = 16;
#endif
constexpr int CHAINS = LANES < 8 ? LANES : 8;  // independent accumulation chains of scores
constexpr long VALUE_KEYS = 16;  // keys whose values are processed while they are in the L1 cache

// A run of rows of one head, behind `skipped` keys that are not read, and the distances to those that
// are prefetched meanwhile.
template <class Kind>
struct Run {
    typedef typename Kind::Element Element;
    const Element* rows;
    long stride, skipped, count;
    Distances distances;

    long end() const { return skipped + count; }
    const Element* row(long j) const {
        return rows + std::max(0L, std::min(j - skipped, count - 1)) * stride;
    }
    template <int ROWS>
    void prefetch(const Element* address) const {
        if (distances.are_none()) return;
        for (int i = 0; i < prefetches(ROWS); i++)
            __builtin_prefetch(reinterpret_cast<const char*>(address) + distances.bytes[i], 0, 2);
    }
};

template <class Kind>
constexpr bool starts_line(long element) {
    return element * (long)sizeof(typename Kind::Element) % LINE_BYTES == 0;
}

// Computes products[r * LANES / ROWS + first + i] for CHAINS / ROWS keys; lanes are not summed yet.
template <class Kind, int ROWS>
INLINE void multiply_keys(vf (&products)[LANES], int first,
                          const typename Products<Kind>::Word* q, long q_row, long D,
                          const Run<Kind>& run, long at) {
    typedef Products<Kind> Multiply;
    typedef typename Multiply::Word Word;
    constexpr int KEYS = CHAINS / ROWS;
    constexpr long SLOT = Multiply::SLOT;
    const typename Kind::Element* key[KEYS];
    for (int i = 0; i < KEYS; i++) key[i] = run.row(at + i);
    vf found[ROWS][KEYS] = {};
    auto add = [&](const Word* queries, long offset) __attribute__((always_inline)) {
        typename Multiply::Words value[KEYS];
#pragma GCC unroll 8
        for (int i = 0; i < KEYS; i++) value[i] = Multiply::read_row(key[i] + offset);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            auto query = Multiply::load_words(queries + r * q_row);
#pragma GCC unroll 8
            for (int i = 0; i < KEYS; i++)
                found[r][i] = Multiply::add(query, value[i], found[r][i]);
        }
    };
    const long whole = D / SLOT * SLOT;
    for (long offset = 0; offset < whole; offset += SLOT) {
        if (starts_line<Kind>(offset))
            for (int i = 0; i < KEYS; i++) run.template prefetch<ROWS>(key[i] + offset);
        add(q + offset / Multiply::STEP, offset);
    }
    if (whole < D) add(q + whole / Multiply::STEP, Slots<Kind>::offset(D, whole / SLOT));
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < KEYS; i++) products[r * (LANES / ROWS) + first + i] = found[r][i];
}

// scores[r][j] = q[r] . keys[j] for ROWS rows; q is in slots that count no element twice.
template <class Kind, int ROWS>
void score_few(float* scores, const typename Products<Kind>::Word* q, long q_row, long D,
               const Run<Kind>& run) {
    constexpr int KEYS = LANES / ROWS;
    for (long j = 0; j < run.end(); j += KEYS) {
        vf products[LANES];  // [row][key]
#pragma GCC unroll 8
        for (int first = 0; first < KEYS; first += CHAINS / ROWS)
            multiply_keys<Kind, ROWS>(products, first, q, q_row, D, run, j + first);
        float found[LANES];
        store(found, sums(products));
        for (int r = 0; r < ROWS; r++)
            std::memcpy(scores + r * FEW_COLUMNS + j, found + r * KEYS, KEYS * sizeof(float));
    }
}

// Keeps an address in one register; the instructions that use it add constant offsets.
template <class Element>
INLINE void one_address(const Element*& address) {
    asm("" : "+r"(address));
}

// sum[r] += weights[r] . values, for a range of keys and WIDTH slots from `slot` on.
template <class Kind, int ROWS, int WIDTH>
INLINE void add_slots(float* sum, long sum_row, const typename Products<Kind>::Word* weights,
                      long D, const Run<Kind>& run, long begin, long end, long slot) {
    typedef Products<Kind> Multiply;
    constexpr long SLOT = Multiply::SLOT, STEP = Multiply::STEP;
    constexpr long WEIGHTS_ROW = FEW_COLUMNS * (long)sizeof(float) / sizeof *weights;
    const long offset = slot * SLOT, last = Slots<Kind>::offset(D, slot + WIDTH - 1);
    float* out = sum + offset;
    vf sums[ROWS][WIDTH][STEP];
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++)
            for (int s = 0; s < STEP; s++)
                sums[r][i][s] = load(out + r * sum_row + i * SLOT + s * LANES);
    for (long j = begin; j < end; j += STEP) {
        const typename Kind::Element *first = run.row(j), *second = run.row(j + STEP - 1);
        const auto *from = first + offset, *also_from = second + offset;
        one_address(from), one_address(also_from);
        typename Multiply::Words value[WIDTH][STEP];
#pragma GCC unroll 16
        for (int i = 0; i < WIDTH; i++) {
            if (starts_line<Kind>(i * SLOT)) {
                run.template prefetch<ROWS>(from + i * SLOT);
                if (STEP > 1) run.template prefetch<ROWS>(also_from + i * SLOT);
            }
            bool is_inner = i < WIDTH - 1;
            Multiply::read_rows(value[i], is_inner ? from + i * SLOT : first + last,
                                is_inner ? also_from + i * SLOT : second + last);
        }
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            auto weight = Multiply::repeat(weights + r * WEIGHTS_ROW + j / STEP);
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++)
                for (int s = 0; s < STEP; s++)
                    sums[r][i][s] = Multiply::add(weight, value[i][s], sums[r][i][s]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++)
            for (int s = 0; s < STEP; s++)
                store(out + r * sum_row + i * SLOT + s * LANES, sums[r][i][s]);
}

// The same for all slots from `slot` on, in the largest groups that fit.
template <class Kind, int ROWS, int WIDTH>
INLINE void add_row_ends(float* sum, long sum_row, const typename Products<Kind>::Word* weights,
                         long D, const Run<Kind>& run, long begin, long end, long slot) {
    const long slots = Slots<Kind>::count(D);
    for (; slot + WIDTH <= slots; slot += WIDTH)
        add_slots<Kind, ROWS, WIDTH>(sum, sum_row, weights, D, run, begin, end, slot);
    if constexpr (WIDTH > 1)
        if (slot < slots)
            add_row_ends<Kind, ROWS, WIDTH / 2>(
                sum, sum_row, weights, D, run, begin, end, slot);
}

// The same for all keys of a run, in small groups, so that rows are read one after the other.
template <class Kind, int ROWS>
void add_few(float* sum, long sum_row, const typename Products<Kind>::Word* weights, long D,
             const Run<Kind>& run) {
    constexpr int WIDTH = FEW_SUMS / ROWS / Products<Kind>::STEP;
    for (long j = 0; j < run.end(); j += VALUE_KEYS)
        add_row_ends<Kind, ROWS, WIDTH>(sum, sum_row, weights, D, run, j,
                                        std::min(j + VALUE_KEYS, run.end()), 0);
}

// Copies a query, scaled, into slots of words; the last slot has zeros where it overlaps the one
// before.
template <class Kind>
void take_few(typename Products<Kind>::Word* out, const float* q, float scale, long D) {
    typedef Products<Kind> Multiply;
    constexpr long SLOT = Multiply::SLOT, STEP = Multiply::STEP;
    for (long slot = 0; slot < Slots<Kind>::count(D); slot++) {
        const long offset = Slots<Kind>::offset(D, slot), end = std::min(D, offset + SLOT);
        float elements[SLOT] = {};
        for (long i = slot * SLOT; i < end; i++) elements[i - offset] = q[i] * scale;
        vf parts[STEP];
        for (int s = 0; s < STEP; s++) parts[s] = load(elements + s * LANES);
        auto words = Multiply::pack(parts);
        std::memcpy(out + slot * LANES, &words, sizeof words);
    }
}

// The attention of one item. Heads of the item have adjacent rows in all arrays.
template <class Kind>
class Few {
public:
    typedef Products<Kind> Multiply;
    typedef typename Multiply::Word Word;
    typedef typename Kind::Element Element;

    // `following` is the next item with few rows that the thread attends to, or null.
    Few(const Work& work, const Scratch& scratch, const State& state, const Item& item,
        const Item* following)
        : work(work), state(state), item(item), pages(work), table(work.table(item)),
          upcoming(work, pages, item, following), D(work.sizes.D), sum_row(work.sizes.row),
          q_row(Slots<Kind>::count(D) * LANES), q(reinterpret_cast<Word*>(scratch.q)),
          scores(scratch.scores) {
        for (long row = 0; row < item.all_rows(); row++) take_row(row);
    }

    void attend() {
        for (long key = item.begin; key < item.end;) {
            KeyTile tile = tile_at(item, key);
            read<0>(tile);
            weigh_tile(tile);
            read<1>(tile);
            key = tile.end;
        }
    }

private:
    const Work& work;
    const State& state;
    const Item& item;
    const Pages<Kind> pages;
    const int32_t* table;
    Upcoming<Kind> upcoming;
    const long D, sum_row, q_row;
    Word* q;
    float* scores;
    TileRow rows[ITEM_ROWS];  // of the whole context

    void take_row(long row) {
        take_few<Kind>(q + row * q_row, work.query(item, row), work.layer.scale, D);
        const long position = work.position(item, row % item.num_rows);
        rows[row] = {{work.first_key(position), position + 1}, position, work.slope(item, row)};
    }

    // Computes the scores of a tile from K (side 0), or adds its values to the sums (side 1).
    template <int SIDE>
    void read(const KeyTile& tile) {
        for (long key = tile.begin; key < tile.end;) {
            BlockKeys keys = block_keys(table, pages.block_size, key, tile.end);
            for (long head = 0; head < item.num_heads; head++) {
                const Element* rows =
                    pages.elements(keys.block, pages.row(SIDE, item.head + head) + keys.offset);
                const long at = key - tile.start, skipped = SIDE ? at % Multiply::STEP : 0;
                read_run<SIDE>({rows, D, skipped, keys.count, upcoming.next(rows)}, head,
                               at - skipped);
            }
            key += keys.count;
        }
    }

    template <int SIDE>
    void read_run(Run<Kind> run, long head, long at) {
        Element copies[FEW_KEYS * Multiply::SLOT];
        if (D < Multiply::SLOT) run = padded(copies, run);
        long row = head * item.num_rows, end = row + item.num_rows;
        for (; row + 4 <= end; row += 4, run.distances = {}) read_rows<SIDE, 4>(run, row, at);
        if (row + 2 <= end) read_rows<SIDE, 2>(run, row, at), row += 2, run.distances = {};
        if (row < end) read_rows<SIDE, 1>(run, row, at);
    }

    Run<Kind> padded(Element* copies, const Run<Kind>& run) const {
        std::fill(copies, copies + run.count * Multiply::SLOT, Element());
        for (long j = 0; j < run.count; j++)
            std::memcpy(copies + j * Multiply::SLOT, run.rows + j * D, D * sizeof(Element));
        return {copies, Multiply::SLOT, run.skipped, run.count, {}};
    }

    template <int SIDE, int ROWS>
    void read_rows(const Run<Kind>& run, long row, long at) {
        float* of_row = scores + row * FEW_COLUMNS;
        if (SIDE == 0)
            return score_few<Kind, ROWS>(of_row + at, q + row * q_row, q_row, D, run);
        const Word* weights = reinterpret_cast<const Word*>(of_row) + at / Multiply::STEP;
        add_few<Kind, ROWS>(state.sum + row * sum_row, sum_row, weights, D, run);
    }

    // Turns scores into weights, and multiplies the sums by the changes of scale.
    void weigh_tile(const KeyTile& tile) {
        constexpr long SLOT = Multiply::SLOT;
        const Span keys = {(tile.begin - tile.start) / SLOT * SLOT,
                           rounded_up(tile.end - tile.start, SLOT)};
        const Scales k_scales(*this, tile, 0), v_scales(*this, tile, 1);
        for (long row = 0; row < item.all_rows(); row += LANES) {
            const long num_rows = std::min<long>(LANES, item.all_rows() - row);
            float *first = scores + row * FEW_COLUMNS, factors[LANES];
            vf most[LANES];
            for (vf& largest : most) largest = set1(-INFINITY);
            for (long r = 0; r < num_rows; r++)
                most[r] = finish(first + r * FEW_COLUMNS, keys, work.layer, of_tile(tile, row + r),
                                 k_scales.of(row + r), most[r]);
            weigh<Multiply>(first, FEW_COLUMNS, num_rows, keys, most,
                            {state.largest + row, state.total + row}, factors,
                            [&](long r) { return v_scales.of(row + r); });
            for (long r = 0; r < num_rows; r++) rescale(row + r, factors[r]);
        }
    }

    TileRow of_tile(const KeyTile& tile, long row) const {
        const TileRow& all = rows[row];
        return {{std::max(tile.begin, all.seen.first) - tile.start,
                 std::min(tile.end, all.seen.last) - tile.start},
                all.query - tile.start,
                all.slope};
    }

    void rescale(long row, float factor) {
        if (factor == 1.0f) return;
        float* sum = state.sum + row * sum_row;
        for (long i = 0; i < sum_row; i += LANES) store(sum + i, load(sum + i) * set1(factor));
    }

    // Scales of a tile's rows of K or V, for all heads of the item.
    class Scales {
    public:
        Scales(const Few& few, const KeyTile& tile, long side) : num_rows(few.item.num_rows) {
            if constexpr (Kind::HAS_ROW_SCALES)
                for (long head = 0; head < few.item.num_heads; head++) {
                    std::fill(scales[head], scales[head] + FEW_COLUMNS, 1.0f);
                    few.find_scales(scales[head], tile, side, few.item.head + head);
                }
        }
        const float* of(long row) const {
            return Kind::HAS_ROW_SCALES ? scales[row / num_rows] : nullptr;
        }

    private:
        const long num_rows;
        float scales[Kind::HAS_ROW_SCALES ? ITEM_ROWS : 1][FEW_COLUMNS];
    };

    void find_scales(float* out, const KeyTile& tile, long side, long head) const {
        for (long key = tile.begin; key < tile.end;) {
            BlockKeys keys = block_keys(table, pages.block_size, key, tile.end);
            const float* from = pages.scale(keys.block, pages.row(side, head) + keys.offset);
            std::memcpy(out + key - tile.start, from, keys.count * sizeof *from);
            key += keys.count;
        }
    }
};
