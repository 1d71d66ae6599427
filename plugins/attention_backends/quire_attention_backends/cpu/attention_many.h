// Attention of many query rows over many keys in register tiles: the prefill path.
//
// A tile of keys is packed once for all rows: K is transposed into panels [D][COLUMNS], V is copied
// into panels [keys][COLUMNS]. Products of rows and panels that are hidden from all queries are
// skipped, at the granularity of register tiles. The order of the other steps is that of
// FlashAttention-2 (Dao 2023).
#pragma once

#include "attention_pages.h"
#include "attention_softmax.h"
#include "shuffle.h"
#include "tile.h"

// The visible keys of a row or a register tile, relative to the start of the tile of keys.
struct Span {
    long first, last;
    bool is_empty() const { return first >= last; }
};

template <class Kind>
void pack_keys(float* out, const Rows<Kind>& keys, const Sizes& sizes, long count) {
    for (long j = 0; j < rounded_up(count, COLUMNS); j += LANES) {
        float* panel = out + j / COLUMNS * COLUMNS * sizes.D + j % COLUMNS;
        for (long slot = 0; slot < sizes.slots; slot++) {
            long offset = sizes.offset(slot);
            vf square[LANES] = {};
            for (int i = 0; i < LANES && j < count; i++) {
                square[i] = Kind::read(keys.elements[j + i] + offset);
                if (Kind::HAS_ROW_SCALES) square[i] = square[i] * set1(keys.scales[j + i]);
            }
            transpose(square);
            for (int i = 0; i < std::min<long>(LANES, sizes.D); i++)
                store(panel + (offset + i) * COLUMNS, square[i]);
        }
    }
}

template <class Kind>
void pack_values(float* out, const Rows<Kind>& values, const Sizes& sizes, long count) {
    for (long j = 0; j < count; j++) {
        float row[LANES];
        for (long slot = 0; slot < sizes.slots; slot++) {
            long offset = sizes.offset(slot), skipped = slot * LANES - offset;
            vf value = Kind::read(values.elements[j] + offset);
            if (Kind::HAS_ROW_SCALES) value = value * set1(values.scales[j]);
            float* at = out + (slot * LANES / COLUMNS * MANY_KEYS + j) * COLUMNS
                + slot * LANES % COLUMNS;
            if (skipped) {
                store(row, value);
                value = zero();
                for (long i = skipped; i < LANES; i++) value[i - skipped] = row[i];
            }
            store(at, value);
        }
    }
}

INLINE Span span_of(const Work& work, const Item& item, long row, long at, long count) {
    if (row >= item.num_rows) return {0, 0};
    long position = work.position(item, row);
    return {std::max(0L, work.first_key(position) - at), std::min(count, position + 1 - at)};
}

// The keys that are visible to any row of a register tile; positions never decrease from row to
// row.
INLINE Span span_of_tile(const Work& work, const Item& item, long row, long at, long count) {
    long last = std::min(row + TILE_ROWS, item.num_rows) - 1;
    return {span_of(work, item, row, at, count).first, span_of(work, item, last, at, count).last};
}

inline void score_many(float* scores, const float* q, const float* k, const Sizes& sizes,
                       const Span* spans, long num_rows, long count) {
    for (long column = 0; column < count; column += COLUMNS)
        for (long row = 0; row < num_rows; row += TILE_ROWS) {
            Span span = spans[row / TILE_ROWS];
            if (column >= span.last || column + COLUMNS <= span.first) continue;
            vf product[TILE_ROWS][TILE_VECTORS] = {};
            tile_product(product, q + row * sizes.row, sizes.row, 1, k + column * sizes.D, COLUMNS,
                         sizes.D);
            for (int r = 0; r < TILE_ROWS; r++)
                for (int v = 0; v < TILE_VECTORS; v++)
                    store(scores + (row + r) * MANY_KEYS + column + v * LANES, product[r][v]);
        }
}

// Turns the scores of a row into softmax weights: those of visible keys, zeros in the rest of
// `tile`. The query is at `query`, relative to the tile.
inline float weigh_many(float* scores, const Layer& layer, Span seen, Span tile, float slope,
                        long query, float& largest, float& total) {
    long from = tile.first / LANES * LANES, to = rounded_up(tile.last, LANES);
    long begin = seen.first / LANES * LANES, end = rounded_up(seen.last, LANES);
    if (seen.is_empty()) begin = end = to;
    for (long j = from; j < begin; j += LANES) store(scores + j, zero());
    for (long j = std::max(end, from); j < to; j += LANES) store(scores + j, zero());
    if (seen.is_empty()) return 1.0f;
    vf most = set1(largest);
    for (long j = begin; j < end; j += LANES) {
        vf score = load(scores + j);
        if (layer.cap != 0.0f) score = set1(layer.cap) * tanh_of(score);
        if (slope != 0.0f) score = score + linear_bias(slope, j, query);
        if (j < seen.first || j + LANES > seen.last)
            score = hide_outside(score, j, seen.first, seen.last);
        most = max(score, most);
        store(scores + j, score);
    }
    float now = largest_lane(most), factor = rescaling(largest, now);
    vf weights = zero();
    for (long j = begin; j < end; j += LANES) {
        vf weight = power_of_two(load(scores + j) - set1(now));
        weights = weights + weight;
        store(scores + j, weight);
    }
    largest = now;
    total = total * factor + sum_of_lanes(weights);
    return factor;
}

inline void add_many(float* sum, const float* factors, const float* weights, const float* v,
                     const Sizes& sizes, const Span* spans, long num_rows) {
    for (long panel = 0; panel < sizes.panels; panel++)
        for (long row = 0; row < num_rows; row += TILE_ROWS) {
            Span span = spans[row / TILE_ROWS];
            if (span.is_empty()) continue;
            float* out = sum + row * sizes.row + panel * COLUMNS;
            vf product[TILE_ROWS][TILE_VECTORS];
            for (int r = 0; r < TILE_ROWS; r++)
                for (int i = 0; i < TILE_VECTORS; i++)
                    product[r][i] = load(out + r * sizes.row + i * LANES) * set1(factors[row + r]);
            tile_product(product, weights + row * MANY_KEYS + span.first, MANY_KEYS, 1,
                         v + (panel * MANY_KEYS + span.first) * COLUMNS, COLUMNS,
                         span.last - span.first);
            for (int r = 0; r < TILE_ROWS; r++)
                for (int i = 0; i < TILE_VECTORS; i++)
                    store(out + r * sizes.row + i * LANES, product[r][i]);
        }
}

// Copies query rows, scaled, and pads them with zero rows to whole register tiles.
inline void take_many(float* out, const Work& work, const Item& item, long num_rows) {
    const Sizes& sizes = work.sizes;
    for (long r = 0; r < num_rows; r++) {
        float* row = out + r * sizes.row;
        if (r >= item.num_rows) {
            std::fill(row, row + sizes.D, 0.0f);
            continue;
        }
        const float* q = work.query(item, r);
        for (long i = 0; i < sizes.D; i++) row[i] = q[i] * work.layer.scale;
    }
}

template <class Kind>
void attend_many(const Work& work, const Scratch& scratch, const State& state, const Item& item) {
    const Pages<Kind> pages(work);
    const Sizes& sizes = work.sizes;
    const int32_t* table = work.table(item);
    long num_rows = rounded_up(item.num_rows, TILE_ROWS);
    take_many(scratch.q, work, item, num_rows);
    Rows<Kind> rows;
    Span spans[MANY_ROWS / TILE_ROWS];
    for (long at = item.begin; at < item.end; at += MANY_KEYS) {
        long count = std::min(MANY_KEYS, item.end - at);
        rows.find(pages, table, 0, item.head, at, count);
        pack_keys(scratch.k, rows, sizes, count);
        rows.find(pages, table, 1, item.head, at, count);
        pack_values(scratch.v, rows, sizes, count);
        for (long row = 0; row < num_rows; row += TILE_ROWS)
            spans[row / TILE_ROWS] = span_of_tile(work, item, row, at, count);
        score_many(scratch.scores, scratch.q, scratch.k, sizes, spans, num_rows, count);
        for (long row = 0; row < num_rows; row++) {
            Span seen = span_of(work, item, row, at, count), tile = spans[row / TILE_ROWS];
            const bool is_padding = row >= item.num_rows;
            scratch.factors[row] = weigh_many(
                scratch.scores + row * MANY_KEYS, work.layer, seen, tile,
                is_padding ? 0.0f : work.slope(item, row),
                is_padding ? 0 : work.position(item, row) - at, state.largest[row],
                state.total[row]);
        }
        add_many(state.sum, scratch.factors, scratch.scores, scratch.v, sizes, spans, num_rows);
    }
}
