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
constexpr long FEW_COLUMNS = FEW_KEYS + LANES;  // of a row of scores, which are stored in vectors
static_assert(ITEM_ROWS * FEW_COLUMNS <= MANY_ROWS * MANY_KEYS && ITEM_ROWS <= MANY_ROWS, "");

// A run of rows of one head, behind `skipped` keys that are not read, and the distance in bytes to
// those that are prefetched meanwhile.
template <class Kind>
struct Run {
    typedef typename Kind::Element Element;
    const Element* rows;
    long stride, skipped, count, distance;

    long end() const { return skipped + count; }
    const Element* row(long j) const {
        return rows + std::max(0L, std::min(j - skipped, count - 1)) * stride;
    }
    void prefetch(const Element* address) const {
        __builtin_prefetch(reinterpret_cast<const char*>(address) + distance, 0, 2);
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
            for (int i = 0; i < KEYS; i++) run.prefetch(key[i] + offset);
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
                run.prefetch(from + i * SLOT);
                if (STEP > 1) run.prefetch(also_from + i * SLOT);
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

    Few(const Work& work, const Scratch& scratch, const State& state, const Item& item)
        : work(work), state(state), item(item), pages(work), table(work.table(item)),
          ahead(pages, table, item), D(work.sizes.D), sum_row(work.sizes.row),
          q_row(Slots<Kind>::count(D) * LANES), q(reinterpret_cast<Word*>(scratch.q)),
          scores(scratch.scores) {
        for (long row = 0; row < item.all_rows(); row++)
            take_few<Kind>(q + row * q_row, work.query(item, row), work.layer.scale, D);
        long run_bytes = std::min(pages.block_size, FEW_KEYS) * D * (long)sizeof(Element);
        for (long bytes = run_bytes; bytes < AHEAD_BYTES; bytes += run_bytes) ahead.next();
    }

    void attend() {
        for (long key = item.begin; key < item.end;) {
            KeyTile tile = tile_at(item, key);
            read<0>(tile);
            for (long head = 0; head < item.num_heads; head++) weigh_head(tile, head);
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
    Ahead<Kind> ahead;
    const long D, sum_row, q_row;
    Word* q;
    float* scores;

    // Computes the scores of a tile from K (side 0), or adds its values to the sums (side 1).
    template <int SIDE>
    void read(const KeyTile& tile) {
        for (long key = tile.begin; key < tile.end;) {
            BlockKeys keys = block_keys(table, pages.block_size, key, tile.end);
            for (long head = 0; head < item.num_heads; head++) {
                const Element* rows =
                    pages.elements(keys.block, pages.row(SIDE, item.head + head) + keys.offset);
                const Element* later = ahead.next();
                long distance = later ? (const char*)later - (const char*)rows : 0;
                const long at = key - tile.start, skipped = SIDE ? at % Multiply::STEP : 0;
                read_run<SIDE>({rows, D, skipped, keys.count, distance}, head, at - skipped);
            }
            key += keys.count;
        }
    }

    template <int SIDE>
    void read_run(Run<Kind> run, long head, long at) {
        Element copies[FEW_KEYS * Multiply::SLOT];
        if (D < Multiply::SLOT) run = padded(copies, run);
        long row = head * item.num_rows, end = row + item.num_rows;
        for (; row + 4 <= end; row += 4, run.distance = 0) read_rows<SIDE, 4>(run, row, at);
        if (row + 2 <= end) read_rows<SIDE, 2>(run, row, at), row += 2, run.distance = 0;
        if (row < end) read_rows<SIDE, 1>(run, row, at);
    }

    Run<Kind> padded(Element* copies, const Run<Kind>& run) const {
        std::fill(copies, copies + run.count * Multiply::SLOT, Element());
        for (long j = 0; j < run.count; j++)
            std::memcpy(copies + j * Multiply::SLOT, run.rows + j * D, D * sizeof(Element));
        return {copies, Multiply::SLOT, run.skipped, run.count, 0};
    }

    template <int SIDE, int ROWS>
    void read_rows(const Run<Kind>& run, long row, long at) {
        float* of_row = scores + row * FEW_COLUMNS;
        if (SIDE == 0)
            return score_few<Kind, ROWS>(of_row + at, q + row * q_row, q_row, D, run);
        const Word* weights = reinterpret_cast<const Word*>(of_row) + at / Multiply::STEP;
        add_few<Kind, ROWS>(state.sum + row * sum_row, sum_row, weights, D, run);
    }

    // Turns the scores of a head into weights, and multiplies its sums by the changes of scale.
    void weigh_head(const KeyTile& tile, long head) {
        float k_scales[FEW_COLUMNS], v_scales[FEW_COLUMNS];
        KeyScales scales = {nullptr, nullptr};
        if (Kind::HAS_ROW_SCALES) {
            std::fill(k_scales, k_scales + FEW_COLUMNS, 1.0f);
            std::fill(v_scales, v_scales + FEW_COLUMNS, 1.0f);
            find_scales(k_scales, tile, 0, item.head + head);
            find_scales(v_scales, tile, 1, item.head + head);
            scales = {k_scales, v_scales};
        }
        const Span keys = {tile.begin - tile.start, tile.end - tile.start};
        for (long r = 0; r < item.num_rows; r++) {
            const long row = head * item.num_rows + r, position = work.position(item, r);
            Span seen = {std::max(tile.begin, work.first_key(position)) - tile.start,
                         std::min(tile.end, position + 1) - tile.start};
            float factor = weigh<Multiply>(
                scores + row * FEW_COLUMNS, work.layer, seen, keys, work.slope(item, row),
                position - tile.start, scales, {state.largest + row, state.total + row});
            if (factor == 1.0f) continue;
            float* sum = state.sum + row * sum_row;
            for (long i = 0; i < sum_row; i += LANES) store(sum + i, load(sum + i) * set1(factor));
        }
    }

    void find_scales(float* out, const KeyTile& tile, long side, long head) const {
        for (long key = tile.begin; key < tile.end;) {
            BlockKeys keys = block_keys(table, pages.block_size, key, tile.end);
            const float* from = pages.scale(keys.block, pages.row(side, head) + keys.offset);
            std::memcpy(out + key - tile.start, from, keys.count * sizeof *from);
            key += keys.count;
        }
    }
};
