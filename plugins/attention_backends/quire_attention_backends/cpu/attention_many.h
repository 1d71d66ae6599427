// Attention of many query rows over many keys in register tiles: the prefill path.
//
// A tile of keys is packed once for all rows into panels of COLUMNS words: K is transposed,
// [D / STEP][COLUMNS], and V has the words of STEP adjacent keys, [keys / STEP][COLUMNS]. Products
// of rows and panels that are hidden from all queries are skipped, at the granularity of register
// tiles. The order of the other steps is that of FlashAttention-2 (Dao 2023).
#pragma once

#include "attention_pages.h"
#include "attention_softmax.h"
#include "tile.h"

// acc[r][v] += sum over k of a[r * a_row + k] * b[k * COLUMNS + v * LANES ...], which are words.
template <class Multiply>
INLINE void add_tile(vf (&acc)[TILE_ROWS][TILE_VECTORS], const typename Multiply::Word* a,
                     long a_row, const typename Multiply::Word* b, long size) {
    for (long k = 0; k < size; k++) {
        typename Multiply::Words column[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++)
            column[v] = Multiply::load_words(b + k * COLUMNS + v * LANES);
        for (int r = 0; r < TILE_ROWS; r++) {
            auto value = Multiply::repeat(a + r * a_row + k);
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

    Many(const Work& work, const Scratch& scratch, const State& state, const Item& item)
        : work(work), state(state), item(item), pages(work), table(work.table(item)),
          D(work.sizes.D), sum_row(work.sizes.row), q_row(words_of(D)),
          num_rows(rounded_up(item.num_rows, TILE_ROWS)),
          q(reinterpret_cast<Word*>(scratch.q)), k(reinterpret_cast<Word*>(scratch.k)),
          v(reinterpret_cast<Word*>(scratch.v)), scores(scratch.scores),
          factors(scratch.factors) {}

    void attend() {
        take_queries();
        for (long at = item.begin; at < item.end; at += MANY_KEYS) {
            const long count = std::min(MANY_KEYS, item.end - at);
            rows.find(pages, table, 0, item.head, at, count);
            pack_keys(count);
            rows.find(pages, table, 1, item.head, at, count);
            pack_values(count);
            for (long row = 0; row < num_rows; row += TILE_ROWS)
                spans[row / TILE_ROWS] = span_of_tile(row, at, count);
            score(count);
            for (long row = 0; row < num_rows; row++) weigh_row(row, at, count);
            add();
        }
    }

private:
    const Work& work;
    const State& state;
    const Item& item;
    const Pages<Kind> pages;
    const int32_t* table;
    const long D, sum_row, q_row, num_rows;
    Word *q, *k, *v;
    float *scores, *factors;
    Rows<Kind> rows;
    Span spans[MANY_ROWS / TILE_ROWS];

    static long words_of(long elements) { return (elements + STEP - 1) / STEP; }

    // Copies query rows, scaled, and pads them with zero rows to whole register tiles.
    void take_queries() {
        for (long r = 0; r < num_rows; r++) {
            const float* row = r < item.num_rows ? work.query(item, r) : nullptr;
            for (long i = 0; i < D; i += SLOT) {
                float elements[SLOT] = {};
                const long end = row ? std::min(SLOT, D - i) : 0;
                for (long j = 0; j < end; j++) elements[j] = row[i + j] * work.layer.scale;
                vf parts[STEP];
                for (int s = 0; s < STEP; s++) parts[s] = load(elements + s * LANES);
                Words words = Multiply::pack(parts);
                std::memcpy(q + r * q_row + i / STEP, &words,
                            std::min<long>(LANES, q_row - i / STEP) * sizeof(Word));
            }
        }
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

    Span span_of(long row, long at, long count) const {
        if (row >= item.num_rows) return {0, 0};
        const long position = work.position(item, row);
        return {std::max(0L, work.first_key(position) - at), std::min(count, position + 1 - at)};
    }

    // The keys that are visible to any row of a register tile; positions never decrease from row to
    // row.
    Span span_of_tile(long row, long at, long count) const {
        const long last = std::min(row + TILE_ROWS, item.num_rows) - 1;
        return {span_of(row, at, count).first, span_of(last, at, count).last};
    }

    void score(long count) {
        for (long column = 0; column < count; column += COLUMNS)
            for (long row = 0; row < num_rows; row += TILE_ROWS) {
                const Span span = spans[row / TILE_ROWS];
                if (column >= span.last || column + COLUMNS <= span.first) continue;
                vf product[TILE_ROWS][TILE_VECTORS] = {};
                add_tile<Multiply>(product, q + row * q_row, q_row, k + column * q_row, q_row);
                for (int r = 0; r < TILE_ROWS; r++)
                    for (int i = 0; i < TILE_VECTORS; i++)
                        store(scores + (row + r) * MANY_KEYS + column + i * LANES, product[r][i]);
            }
    }

    void weigh_row(long row, long at, long count) {
        const bool is_padding = row >= item.num_rows;
        factors[row] = weigh<Multiply>(
            scores + row * MANY_KEYS, work.layer, span_of(row, at, count), spans[row / TILE_ROWS],
            is_padding ? 0.0f : work.slope(item, row),
            is_padding ? 0 : work.position(item, row) - at, {nullptr, nullptr},
            {state.largest + row, state.total + row});
    }

    void add() {
        const Word* weights = reinterpret_cast<const Word*>(scores);
        constexpr long WEIGHTS_ROW = MANY_KEYS * (long)sizeof(float) / sizeof(Word);
        for (long panel = 0; panel < work.sizes.panels; panel++)
            for (long row = 0; row < num_rows; row += TILE_ROWS) {
                const Span span = spans[row / TILE_ROWS];
                if (span.is_empty()) continue;
                const long first = span.first / STEP, last = words_of(span.last);
                float* out = state.sum + row * sum_row + panel * COLUMNS;
                vf product[TILE_ROWS][TILE_VECTORS];
                for (int r = 0; r < TILE_ROWS; r++)
                    for (int i = 0; i < TILE_VECTORS; i++)
                        product[r][i] =
                            load(out + r * sum_row + i * LANES) * set1(factors[row + r]);
                add_tile<Multiply>(product, weights + row * WEIGHTS_ROW + first, WEIGHTS_ROW,
                                   v + (panel * MANY_KEYS + first) * COLUMNS, last - first);
                for (int r = 0; r < TILE_ROWS; r++)
                    for (int i = 0; i < TILE_VECTORS; i++)
                        store(out + r * sum_row + i * LANES, product[r][i]);
            }
    }
};
