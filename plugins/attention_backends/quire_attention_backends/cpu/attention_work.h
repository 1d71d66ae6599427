// Work list of a layer's attention in one step, cut into pieces of equal cost.
//
// The list has an item for each request, key/value head and tile of query rows. A row is one query
// head of one token, so the heads that share K and V are adjacent rows. An item with few rows
// covers several key/value heads, which are adjacent in a page. A cut may go through the keys of an
// item; the outputs of its parts are then merged in the order of the keys. The cuts depend only on
// the batch and the number of threads, so equal steps give equal bits.
//
//   letters: T tokens, R requests, H query heads, K key/value heads, G = H / K, D elements of a
//   head, S tokens of a block. A page is [2, K, S, D], for int8 followed by [2, K, S] float32.
#pragma once

#include <algorithm>

#include "tile.h"
#include "vec.h"

constexpr long FEW_ROWS = 16;  // up to this number of rows, K and V are read in place
constexpr long FEW_KEYS = 64;  // keys of a tile for few rows
constexpr long MANY_ROWS = 576;  // rows of a tile for many rows; whole register tiles
constexpr long MANY_KEYS = 256;  // keys of a tile for many rows
constexpr long CUT_KEYS = 32;  // items are cut at multiples
constexpr long ITEM_ROWS = 32;  // rows of all heads of an item with few rows
constexpr long ROW_COST = 8;  // cost of reading a key, in rows multiplied by it
constexpr long PIECE_COST = 4096;  // minimum cost of a piece
constexpr long PIECES = 4;  // per thread, so that other threads can take over from a delayed one
constexpr long COLUMNS = TILE_COLUMNS;
// Of a row of scores for many keys; padded, so that rows are in different sets of the L1 cache.
constexpr long MANY_COLUMNS = MANY_KEYS + LANES;
constexpr long FEW_COLUMNS = FEW_KEYS + LANES;  // of a row of scores for few rows
constexpr long STATE_ROWS = MANY_ROWS + 16;  // behind the last row may be the rest of a vector
constexpr long SCORES = std::max(TILE_ROWS * MANY_COLUMNS, ITEM_ROWS * FEW_COLUMNS);
constexpr float LOG2_E = 1.44269504f;
static_assert(MANY_ROWS % TILE_ROWS == 0 && MANY_KEYS % COLUMNS == 0 && FEW_KEYS % LANES == 0, "");
static_assert(ITEM_ROWS <= MANY_ROWS && SCORES % 16 == 0, "");

inline long rounded_up(long size, long unit) { return (size + unit - 1) / unit * unit; }

// Parameters that all layers of a backend share.
struct Heads {
    int64_t num_heads, num_kv_heads, head_dim, block_size, kind, threads;
    float* scratch;
};

// Parameters of one layer. A window or a chunk of 0 means none. `scale` turns scores into exponents
// to base 2; with a soft cap it turns them into the argument of tanh, and `cap` is an exponent to
// base 2.
struct Layer {
    uint8_t* pages;
    int64_t page_bytes, window, chunk;
    const float* sinks;   // [H], natural logarithms, or null
    const float* slopes;  // [H], of linear biases, or null
    float scale, cap, k_scale, v_scale;
};

struct Step {
    const int32_t *query_start, *seq_lens, *block_table;
    int64_t table_stride;
    const int64_t* slots;
    int64_t num_requests;
    int64_t* costs;  // [R + 1], scratch memory
};

// Queries, keys and values, [T, heads, D] with a token stride, and the output.
struct Inputs {
    float* q;
    const float *k, *v;
    int64_t q_stride, k_stride, v_stride;
    float* out;  // [T, H, D]
};

// Cosines and sines [P, 2, D], the sines of the first half negated.
struct Rotary {
    const float* table;
    const int64_t* positions;
    const float* norm_weight;  // [H + K, D] or null
    float norm_eps;
};

struct Sizes {
    long D, row, panels;  // padded row length; panels of V's columns
    explicit Sizes(long head_dim)
        : D(head_dim),
          row(rounded_up(head_dim, std::max<long>(COLUMNS, LANES))),
          panels((head_dim + COLUMNS - 1) / COLUMNS) {}
    long thread_floats() const {
        return 2 * MANY_ROWS * row + SCORES + 2 * MANY_KEYS * row + 2 * STATE_ROWS;
    }
    long partial_floats() const { return MANY_ROWS * row + 2 * STATE_ROWS; }
    long floats(long threads) const {
        return threads * (thread_floats() + PIECES * 2 * partial_floats()) + 16;
    }
};

// State of the online softmax of a tile of rows: the weighted sum of the values, the largest score,
// and the sum of the weights relative to it.
struct State {
    float *sum, *largest, *total;  // [rows, row], [rows], [rows]
    void clear(long rows, long row) {
        std::fill(sum, sum + rows * row, 0.0f);
        std::fill(largest, largest + rows, -INFINITY);
        std::fill(total, total + rows, 0.0f);
    }
};

struct Scratch {
    float *q, *scores, *k, *v;
    State state;  // sized for MANY_ROWS rows
    Scratch(float* at, const Sizes& sizes) {
        auto take = [&](long size) {
            float* taken = at;
            at += size;
            return taken;
        };
        q = take(MANY_ROWS * sizes.row);
        state.sum = take(MANY_ROWS * sizes.row);
        scores = take(SCORES);
        k = take(MANY_KEYS * sizes.row);
        v = take(MANY_KEYS * sizes.row);
        state.largest = take(STATE_ROWS);
        state.total = take(STATE_ROWS);
    }
};

// Partial output of a cut item of a piece: a piece has one for the item that began in an earlier
// piece, and one for the item that goes on in the next.
inline State partial_state(float* scratch, const Sizes& sizes, long threads, long piece,
                           bool goes_on) {
    float* at = scratch + threads * sizes.thread_floats()
        + (2 * piece + goes_on) * sizes.partial_floats();
    float* largest = at + MANY_ROWS * sizes.row;
    return {at, largest, largest + STATE_ROWS};
}

// One item of the list: query rows of a request for some key/value heads, and the keys visible to
// them. The rows of a head are adjacent.
struct Item {
    long request, head, num_heads, first_row, num_rows, begin, end;  // rows per head; key range
    bool is_few;
    long all_rows() const { return num_heads * num_rows; }
};

// The rows and keys of a request.
struct Request {
    long index, first_token, num_tokens, seq_len;
};

class Work {
public:
    const Heads& heads;
    const Layer& layer;
    const Step& step;
    const Inputs& inputs;
    const Sizes sizes;
    const long group;

    Work(const Heads& heads, const Layer& layer, const Step& step, const Inputs& inputs)
        : heads(heads), layer(layer), step(step), inputs(inputs), sizes(heads.head_dim),
          group(heads.num_heads / heads.num_kv_heads) {}

    Request request(long r) const {
        long first = step.query_start[r];
        return {r, first, step.query_start[r + 1] - first, step.seq_lens[r]};
    }
    long position(const Request& request, long row) const {
        return request.seq_len - request.num_tokens + row / group;
    }
    long first_key(long position) const {
        long first = layer.window ? std::max(0L, position - layer.window + 1) : 0;
        return layer.chunk ? std::max(first, position / layer.chunk * layer.chunk) : first;
    }
    long position(const Item& item, long row) const {
        return position(request(item.request), item.first_row + row);
    }
    const int32_t* table(const Item& item) const {
        return step.block_table + item.request * step.table_stride;
    }
    const float* query(const Item& item, long row) const {
        return inputs.q + token(item, row) * inputs.q_stride + head(item, row) * sizes.D;
    }
    float* output(const Item& item, long row) const {
        return inputs.out + (token(item, row) * heads.num_heads + head(item, row)) * sizes.D;
    }
    // The query head of a row, indexed among all rows of an item.
    long head(const Item& item, long row) const {
        long at = item.first_row + row % item.num_rows;
        return (item.head + row / item.num_rows) * group + at % group;
    }
    // The slope of a row's linear bias, as an exponent to base 2; 0 without biases.
    float slope(const Item& item, long row) const {
        return layer.slopes ? layer.slopes[head(item, row)] * LOG2_E : 0.0f;
    }
    long token(const Item& item, long row) const {
        long at = item.first_row + row % item.num_rows;
        return step.query_start[item.request] + at / group;
    }
    long num_rows(const Request& request) const { return request.num_tokens * group; }
    // Number of key/value heads per item of a request; the last item may have fewer.
    long heads_of_item(const Request& request) const {
        long rows = num_rows(request);
        return rows > FEW_ROWS ? 1 : std::min(heads.num_kv_heads, std::max(1L, ITEM_ROWS / rows));
    }

    // The item of a tile of rows, with `head` as its first head.
    Item item(const Request& request, long head, long first_row) const {
        long rows = num_rows(request);
        bool is_few = rows <= FEW_ROWS;
        long count = is_few ? rows : std::min(MANY_ROWS, rows - first_row);
        long begin = first_key(position(request, first_row));
        long end = position(request, first_row + count - 1) + 1;
        long num_heads = std::min(heads_of_item(request), heads.num_kv_heads - head);
        return {request.index, head, num_heads, first_row, count, begin, end, is_few};
    }
    static long cost_of_key(const Item& item) {
        return item.num_heads * (item.num_rows + ROW_COST);
    }
    static long cost(const Item& item) { return (item.end - item.begin) * cost_of_key(item); }

    long cost_of_head(const Request& request) const {
        long total = 0;
        for (long row = 0; row < num_rows(request); row += MANY_ROWS) {
            Item of_heads = item(request, 0, row);
            total += cost(of_heads) / of_heads.num_heads;
        }
        return total;
    }
    // Fills `costs` with the cumulative costs of the requests and returns the total.
    long sum_costs() const {
        step.costs[0] = 0;
        for (long r = 0; r < step.num_requests; r++)
            step.costs[r + 1] =
                step.costs[r] + heads.num_kv_heads * cost_of_head(request(r));
        return step.costs[step.num_requests];
    }

    // Calls `visit(part, whole)` for each part of an item between two positions of the list, in
    // order; stops when it returns false.
    template <class Visit>
    void walk(long from, long to, Visit visit) const {
        if (from >= to) return;
        const int64_t* found =
            std::upper_bound(step.costs, step.costs + step.num_requests + 1, from);
        long r = found - step.costs - 1;
        for (; r < step.num_requests && step.costs[r] < to; r++) {
            Request request = this->request(r);
            if (!request.num_tokens) continue;
            long of_head = (step.costs[r + 1] - step.costs[r]) / heads.num_kv_heads;
            long of_item = heads_of_item(request);
            long head = std::max(0L, from - step.costs[r]) / of_head / of_item * of_item;
            for (; head < heads.num_kv_heads; head += of_item) {
                long at = step.costs[r] + head * of_head;
                for (long row = 0; row < num_rows(request); row += MANY_ROWS) {
                    if (at >= to) return;
                    Item whole = item(request, head, row), part = whole;
                    part.begin = cut(whole, from - at);
                    part.end = cut(whole, to - at);
                    at += cost(whole);
                    if (part.begin < part.end && !visit(part, whole)) return;
                }
            }
        }
    }

private:
    // The key at which a position of the list, relative to the item's start, cuts the item.
    static long cut(const Item& item, long cost) {
        if (cost <= 0) return item.begin;
        if (cost >= Work::cost(item)) return item.end;
        long key = (item.begin + cost / cost_of_key(item)) / CUT_KEYS * CUT_KEYS;
        return std::min(std::max(key, item.begin), item.end);
    }
};
