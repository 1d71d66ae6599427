// Attention of many query rows over many keys in register tiles: the prefill path.
//
// A tile of keys is packed once for all rows into panels of COLUMNS words: K is transposed,
// [D / STEP][COLUMNS], and V has the words of STEP adjacent keys, [keys / STEP][COLUMNS]. Products
// of rows and panels that are hidden from all queries are skipped, at the granularity of register
// tiles. The scores of a register tile's rows stay in the L1 cache until their softmax weights are
// multiplied with V, while panels are read from the L2 cache. The order of the other steps is that of
// FlashAttention-2 (Dao 2023).
#pragma once

#include "attention_pages.h"
#include "attention_softmax.h"
#include "tile.h"

// acc[r][v] += sum over k of a[r * A_ROW + k * A_STEP] * b[k * COLUMNS + v * LANES ...], which are
// words. The distances are constants, so that one register addresses all rows.
template <class Multiply, long A_ROW, long A_STEP>
INLINE void add_tile(vf (&acc)[TILE_ROWS][TILE_VECTORS], const typename Multiply::Word* a,
                     const typename Multiply::Word* b, long size) {
    for (long k = 0; k < size; k++) {
        typename Multiply::Words column[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++)
            column[v] = Multiply::load_words(b + k * COLUMNS + v * LANES);
        for (int r = 0; r < TILE_ROWS; r++) {
            auto value = Multiply::repeat(a + r * A_ROW + k * A_STEP);
            for (int v = 0; v < TILE_VECTORS; v++)
                acc[r][v] = Multiply::add(value, column[v], acc[r][v]);
        }
    }
}

// Attention of the rows of one head.
template <class Kind>
class Many {
public:
    typedef Products<Kind> Multiply;
    typedef typename Multiply::Word Word;
    typedef typename Multiply::Words Words;
    static constexpr long SLOT = Multiply::SLOT, STEP = Multiply::STEP;
    static constexpr long GROUPS = (TILE_ROWS + LANES - 1) / LANES;  // of LANES rows
    static constexpr long rows_of(long group) {
        return std::min<long>(LANES, TILE_ROWS - group * LANES);
    }

    Many(const Work& work, const Scratch& scratch, const State& state, const Item& item)
        : work(work), state(state), item(item), pages(work), table(work.table(item)),
          D(work.sizes.D), sum_row(work.sizes.row), q_row(words_of(D)),
          num_rows(rounded_up(item.num_rows, TILE_ROWS)),
          q(reinterpret_cast<Word*>(scratch.q)), k(reinterpret_cast<Word*>(scratch.k)),
          v(reinterpret_cast<Word*>(scratch.v)), scores(scratch.scores) {}

    void attend() {
        take_queries();
        for (long at = item.begin; at < item.end; at += MANY_KEYS) {
            const long count = std::min(MANY_KEYS, item.end - at);
            rows.find(pages, table, 0, item.head, at, count);
            pack_keys(count);
            rows.find(pages, table, 1, item.head, at, count);
            pack_values(count);
            for (long row = 0; row < num_rows; row += TILE_ROWS) attend_rows(row, at, count);
        }
    }

private:
    const Work& work;
    const State& state;
    const Item& item;
    const Pages<Kind> pages;
    const int32_t* table;
    const long D, sum_row, q_row, num_rows;
    Word *q, *k, *v;  // q is [register tile][word][row]
    float* scores;
    Rows<Kind> rows;

    static long words_of(long elements) { return (elements + STEP - 1) / STEP; }

    // Copies query rows, scaled, and pads them with zero rows to whole register tiles.
    void take_queries() {
        for (long row = 0; row < num_rows; row += TILE_ROWS) {
            const float* queries[GROUPS * LANES] = {};
            for (long r = 0; r < std::min<long>(TILE_ROWS, item.num_rows - row); r++)
                queries[r] = work.query(item, row + r);
            for (long group = 0; group < GROUPS; group++)
                for (long i = 0; i < D; i += SLOT)
                    take_square(q + row * q_row + group * LANES, queries + group * LANES, group, i);
        }
    }

    // Copies a slot of the queries of a group of rows.
    void take_square(Word* out, const float* const* queries, long group, long i) {
        const long num_words = std::min<long>(LANES, q_row - i / STEP);
        vf square[LANES] = {};
        for (long r = 0; r < rows_of(group) && queries[r]; r++) {
            Words words = scaled_words(queries[r] + i, std::min(SLOT, D - i));
            std::memcpy(&square[r], &words, sizeof words);
        }
        transpose(square);
        for (long w = 0; w < num_words; w++)
            std::memcpy(out + (i / STEP + w) * TILE_ROWS, &square[w],
                        rows_of(group) * sizeof(Word));
    }

    Words scaled_words(const float* elements, long count) const {
        float copy[SLOT];
        if (count < SLOT) {
            std::fill(copy, copy + SLOT, 0.0f);
            std::copy(elements, elements + count, copy);
            elements = copy;
        }
        vf parts[STEP];
        for (int s = 0; s < STEP; s++) parts[s] = load(elements + s * LANES) * set1(work.layer.scale);
        return Multiply::pack(parts);
    }

    void pack_keys(long count) {
        for (long j = 0; j < rounded_up(count, COLUMNS); j += LANES) {
            Word* panel = k + j / COLUMNS * COLUMNS * q_row + j % COLUMNS;
            for (long i = 0; i < D; i += SLOT) {
                const long offset = std::max(0L, std::min(i, (D - SLOT) / STEP * STEP));
                vf square[LANES] = {};
                for (int key = 0; key < LANES && j < count; key++) {
                    const long row = std::min(j + key, count - 1);
                    Words words = Multiply::read_row(rows.elements[row] + offset);
                    std::memcpy(&square[key], &words, sizeof words);
                    if (Kind::HAS_ROW_SCALES) square[key] = square[key] * set1(rows.scales[row]);
                }
                transpose(square);
                for (int w = 0; w < std::min<long>(LANES, q_row); w++)
                    std::memcpy(panel + (offset / STEP + w) * COLUMNS, &square[w], sizeof(vf));
            }
        }
    }

    void pack_values(long count) {
        for (long j = 0; j < count; j += STEP) {
            const long last = std::min(j + STEP - 1, count - 1);
            for (long slot = 0; slot < Slots<Kind>::count(D); slot++) {
                const long offset = Slots<Kind>::offset(D, slot);
                Words words[STEP];
                Multiply::read_rows(words, rows.elements[j] + offset, rows.elements[last] + offset);
                if constexpr (Kind::HAS_ROW_SCALES) words[0] = words[0] * set1(rows.scales[j]);
                for (int s = 0; s < STEP; s++) {
                    const long column = slot * SLOT + s * LANES;
                    Word* out = v + (column / COLUMNS * MANY_KEYS + j / STEP) * COLUMNS
                        + column % COLUMNS;
                    std::memcpy(out, &words[s], sizeof words[s]);
                }
            }
        }
    }

    Span span_of(long position, long at, long count) const {
        return {std::max(0L, work.first_key(position) - at), std::min(count, position + 1 - at)};
    }

    // Attends from the rows of a register tile to a tile of keys.
    void attend_rows(long row, long at, long count) {
        const long last = std::min(row + TILE_ROWS, item.num_rows) - 1;
        const Span of_first = span_of(work.position(item, row), at, count);
        const Span of_last = span_of(work.position(item, last), at, count);
        // Positions never decrease from row to row.
        const Span span = {of_first.first, of_last.last}, all = {of_last.first, of_first.last};
        if (span.is_empty()) return;
        const Span keys = {span.first / SLOT * SLOT, rounded_up(span.last, SLOT)};
        vf most[GROUPS][LANES];
        float factors[GROUPS * LANES];
        for (auto& group : most)
            for (vf& largest : group) largest = set1(-INFINITY);
        score(most, row, span, all, at, count);
        for (long group = 0; group < GROUPS; group++) {
            const long first = group * LANES;
            weigh<Multiply>(scores + first * MANY_COLUMNS, MANY_COLUMNS, rows_of(group), keys,
                            most[group],
                            {state.largest + row + first, state.total + row + first},
                            factors + first, [](long) -> const float* { return nullptr; });
        }
        add(row, span, factors);
    }

    // Computes the exponents of the keys in `span`, of which all rows see those in `all`.
    void score(vf (&most)[GROUPS][LANES], long row, Span span, Span all, long at, long count) {
        const Layer& layer = work.layer;
        const bool are_changed = layer.cap != 0.0f || layer.slopes;
        TileRow rows[TILE_ROWS];
        long num_found = 0;  // rows are described if there is something to finish
        for (long column = span.first / COLUMNS * COLUMNS; column < span.last; column += COLUMNS) {
            vf product[TILE_ROWS][TILE_VECTORS] = {};
            add_tile<Multiply, 1, TILE_ROWS>(product, q + row * q_row, k + column * q_row, q_row);
            for (int r = 0; r < TILE_ROWS; r++)
                for (int i = 0; i < TILE_VECTORS; i++)
                    store(scores + r * MANY_COLUMNS + column + i * LANES, product[r][i]);
            if (are_changed || column < all.first || column + COLUMNS > all.last) {
                if (!num_found) num_found = describe(rows, row, at, count);
                for (long r = 0; r < num_found; r++) {
                    vf& largest = most[r / LANES][r % LANES];
                    largest = finish(scores + r * MANY_COLUMNS, {column, column + COLUMNS}, layer,
                                     rows[r], nullptr, largest);
                }
            } else {
                for (int r = 0; r < TILE_ROWS; r++)
                    for (int i = 0; i < TILE_VECTORS; i++)
                        most[r / LANES][r % LANES] =
                            max(product[r][i], most[r / LANES][r % LANES]);
            }
        }
    }

    // Describes the rows of a register tile that are no padding; returns their number.
    long describe(TileRow (&rows)[TILE_ROWS], long row, long at, long count) const {
        const long num_found = std::min<long>(TILE_ROWS, item.num_rows - row);
        for (long r = 0; r < num_found; r++) {
            const long position = work.position(item, row + r);
            rows[r] = {span_of(position, at, count), position - at, work.slope(item, row + r)};
        }
        return num_found;
    }

    void add(long row, Span span, const float* factors) {
        constexpr long WORDS_ROW = MANY_COLUMNS * (long)sizeof(float) / sizeof(Word);
        const Word* weights = reinterpret_cast<const Word*>(scores);
        const long first = span.first / STEP, last = words_of(span.last);
        for (long panel = 0; panel < work.sizes.panels; panel++) {
            float* out = state.sum + row * sum_row + panel * COLUMNS;
            vf product[TILE_ROWS][TILE_VECTORS];
            for (int r = 0; r < TILE_ROWS; r++)
                for (int i = 0; i < TILE_VECTORS; i++)
                    product[r][i] = load(out + r * sum_row + i * LANES) * set1(factors[r]);
            add_tile<Multiply, WORDS_ROW, 1>(product, weights + first,
                                             v + (panel * MANY_KEYS + first) * COLUMNS,
                                             last - first);
            for (int r = 0; r < TILE_ROWS; r++)
                for (int i = 0; i < TILE_VECTORS; i++)
                    store(out + r * sum_row + i * LANES, product[r][i]);
        }
    }
};
