// Decode attention, one query per request, over paged K and V; each row is read once.
//
// Not measured yet: the numbers below are calculated.
//
//   paged_decode   (partitions * K * head groups) blocks of 128 threads
//                  a block computes one partition of one request for up to 16 query heads of one KV
//                  head, so that K and V are read from memory once; the blocks of one partition are
//                  adjacent and read the same pages; blocks without work come last and exit
//   combine        (tokens, H / heads per block) blocks of 128 threads
//                  merges the partitions of requests with several; the others are complete
//
// Contexts are cut into partitions once per step, on the device, by the total work: see
// `split_plan.py`. The grid depends only on buffer sizes.
//
// In paged_decode a row of K or V is read by a thread group, 16 bytes per thread:
//
//                 float32   16 bit   float8        a warp of 32 threads holds 32 / THREADS rows at
//   D  64              16        8        4        once and has 2 to 8 of these loads in flight: at
//   D  80, 96, 128     32       16        8        most 16 keys, 1 to 4 KiB per warp (2 KiB with
//   D  256        32 twice      32       16        4 heads and 16 bit), four times that per block
//
// Registers are the limit: with 16 bit, D 128 and four heads per warp, 3 blocks fit on a
// multiprocessor, so 24 KiB are in flight there; 4.8 TB/s at a latency of 0.7 us need 26 KiB. With
// float8 and four heads only 2 blocks fit, with 16 KiB: too few to saturate the memory.
//
// A chunk of 256 keys is processed in three phases, with a barrier after each of the first two:
//
//   scores    thread groups multiply K by the queries in their registers and reduce the sums so
//             that each thread ends with a score of its own (1 shuffle per score instead of 4)
//   softmax   the largest score of each head in a warp, then in the block; all threads compute 2^x
//   values    thread groups multiply V by the weights and keep sums in registers across chunks
//
// A warp loads a row of its next tile as soon as the current row in the same registers is
// converted, before it multiplies. So the next tile is in flight during the arithmetic of the
// current one and takes no extra registers. The last tile of K is followed by the first of V, which
// is in flight during the softmax. Between chunks a warp has no loads in flight; other warps and
// blocks fill that gap.
//
// A warp's tile has up to four heads. With up to 4 query heads per KV head, the four warps divide
// the keys among themselves; with up to 8, two pairs of warps do; with more, each warp has
// different heads and reads the keys that other warps loaded from the L1 cache. Shared memory: one
// float for each key of a chunk and each head of the block, 1 to 16 KiB.
//
// Variants are selected by macros: QUERY (element type of q and of the output: 32 for float32, 16
// for float16, 116 for bfloat16), STORED (the same for K and V, or 8 for float8), HEAD_DIM,
// TILE_HEADS (per warp: 1, 2 or 4) and HEAD_WARPS (1, 2 or 4). There are no includes, so NVRTC
// needs no headers.

constexpr int D = HEAD_DIM;
constexpr int WARPS = 4;
constexpr int BLOCK_THREADS = 32 * WARPS;
constexpr int KEY_WARPS = WARPS / HEAD_WARPS;
constexpr int BLOCK_HEADS = TILE_HEADS * HEAD_WARPS;
constexpr int CHUNK = 256;      // keys
constexpr int PAGE_TILE = 16;   // keys that are always in one page: it divides every block size
constexpr float LOG2_E = 1.44269504088896341f;

#define NOTHING __uint_as_float(0xFF800000u)  // -inf, the score of a hidden key
#define ANYWHERE __host__ __device__ constexpr
ANYWHERE int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }
ANYWHERE int smaller(int a, int b) { return a < b ? a : b; }
ANYWHERE int larger(int a, int b) { return a < b ? b : a; }

constexpr int QUERY_BYTES = QUERY == 32 ? 4 : 2;
constexpr int STORED_BYTES = STORED == 32 ? 4 : STORED == 8 ? 1 : 2;
constexpr int PER_VECTOR = 16 / STORED_BYTES;  // elements
constexpr int ROW_VECTORS = D / PER_VECTOR;
constexpr int THREADS = smaller(32, power_of_two(ROW_VECTORS));  // per thread group
constexpr int VECTORS = (ROW_VECTORS + THREADS - 1) / THREADS;   // of a row, per thread
constexpr int ELEMENTS = VECTORS * PER_VECTOR;
constexpr int ROWS = 32 / THREADS;  // read by a warp at a time
constexpr int LOADS = smaller(TILE_HEADS == 4 ? 4 : 8, PAGE_TILE / ROWS) / VECTORS;
constexpr int TILE = ROWS * LOADS;  // keys of a warp's tile
constexpr int SCORES = TILE_HEADS * LOADS;                  // of a thread group's tile
constexpr int OWN_SCORES = larger(1, SCORES / THREADS);     // per thread, after `fold`
constexpr int TWINS = larger(1, THREADS / SCORES);          // threads that end with the same score
// Queries and sums take most of a thread's registers. This is the number of blocks without spills.
constexpr bool FILLS_GROUPS = ROW_VECTORS == THREADS * VECTORS;
constexpr int BLOCKS_A_MULTIPROCESSOR =
    TILE_HEADS < 4 && D <= 128 ? (FILLS_GROUPS ? 4 : 3) : TILE_HEADS > 1 && ELEMENTS > 8 ? 2 : 3;

static_assert(D % PER_VECTOR == 0, "rows are whole vectors");
static_assert(OWN_SCORES <= LOADS, "a thread's own scores are of one head");
static_assert(PAGE_TILE % TILE == 0 && CHUNK % (TILE * WARPS) == 0, "tiles fill pages and chunks");
static_assert(CHUNK % PAGE_TILE == 0 && CHUNK / PAGE_TILE < 32, "a lane for each page of a chunk");

// One piece of work: keys `begin` to `end` of a request; `begin` is a multiple of PAGE_TILE.
struct __align__(16) Partition {
    int request;
    int begin;
    int end;
    int slot;  // of its partial output; -1: it writes the output
};

// Argument of both kernels; the same as `cuda_decode.DecodeStep` in Python.
struct DecodeStep {
    void *out;                    // [T, H, D], contiguous
    const void *q;                // [T, H, D]
    const char *pages;            // [B, 2, K, S, D]
    const int *block_table;       // [R, ...]
    const int *query_start;       // [R + 1]
    const int *seq_lens;          // [R]
    const int *num_partitions;    // [1]
    const Partition *partitions;  // as `SplitPlan.items`
    const int *parts;             // [R, 2]: a request's first slot and number of slots; 0: none
    float *partial_out;           // [slots, H, D], sums of weight * value
    float *partial_stats;         // [slots, H, 2]: largest score (base 2 exponent); sum of weights
    const float *sinks;           // [H] or null
    long long q_token_stride;     // elements
    long long q_head_stride;
    long long page_stride;        // bytes
    long long table_stride;
    int num_requests;             // R
    int num_tokens;               // T
    int num_kv_heads;             // K
    int group;                    // H / K
    int page_shift;               // S is 2 to this power
    int combined_heads;           // heads per block of `combine`
    int window;                   // sliding window in tokens; 0: none
    int chunk;                    // chunk size in tokens; 0: none
    float q_factor;               // turns scores into base 2 exponents, or the argument of tanh
    float soft_cap;               // as a base 2 exponent; 0: none
    float v_factor;               // of the output
};

// ---- element types -----------------------------------------------------------------------------

#ifndef QUIRE_EMULATED
__device__ __forceinline__ void floats_of_halves(unsigned pair, float *out) {
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(out[0]), "=f"(out[1])
        : "r"(pair));
}

__device__ __forceinline__ unsigned short half_of_float(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

__device__ __forceinline__ unsigned short bfloat_of_float(float x) {
    const unsigned bits = __float_as_uint(x);
    if (x != x) return 0x7FC0;
    return (unsigned short)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Converts the elements of 16 bytes. The result for float8 is 1/256 of the values: a code shifted
// by seven bits is a float16, subnormals included.
template <int KIND>
__device__ __forceinline__ void floats_of(const uint4 vector, float *out) {
    const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned word = words[i];
        if constexpr (KIND == 32) {
            out[i] = __uint_as_float(word);
        } else if constexpr (KIND == 116) {
            out[2 * i] = __uint_as_float(word << 16);
            out[2 * i + 1] = __uint_as_float(word & 0xFFFF0000u);
        } else if constexpr (KIND == 16) {
            floats_of_halves(word, out + 2 * i);
        } else {
            const unsigned low = (word & 0xFF) | ((word & 0xFF00) << 8);
            const unsigned high = ((word >> 16) & 0xFF) | ((word >> 8) & 0xFF0000);
            floats_of_halves(((low & 0x800080) << 8) | ((low & 0x7F007F) << 7), out + 4 * i);
            floats_of_halves(((high & 0x800080) << 8) | ((high & 0x7F007F) << 7), out + 4 * i + 2);
        }
    }
}

__device__ __forceinline__ void store_number(void *out, long long at, float x) {
    if constexpr (QUERY == 32) {
        static_cast<float *>(out)[at] = x;
    } else if constexpr (QUERY == 116) {
        static_cast<unsigned short *>(out)[at] = bfloat_of_float(x);
    } else {
        static_cast<unsigned short *>(out)[at] = half_of_float(x);
    }
}

// The sum, or the maximum below, over the threads of a warp whose lane ids differ only in the bits
// from `least` to `most`; every one of these threads gets the result.
__device__ __forceinline__ float sum_over(float x, int least, int most) {
    for (int bit = most; bit >= least; bit >>= 1) x += __shfl_xor_sync(0xFFFFFFFFu, x, bit);
    return x;
}

__device__ __forceinline__ float largest_over(float x, int least, int most) {
    for (int bit = most; bit >= least; bit >>= 1) {
        x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, bit));
    }
    return x;
}

// ---- decode ------------------------------------------------------------------------------------

// The keys that are visible to a block's query, and may be read.
struct Seen {
    int begin;
    int end;
};

struct Thread {
    int lane;       // in the warp
    int member;     // in the thread group
    int row;        // which of the warp's thread groups
    int key_warp;   // index of the warp's subset of the keys
    int head_warp;  // index of the warp's tile of heads
};

__device__ __forceinline__ Thread this_thread() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return {lane, lane % THREADS, lane / THREADS, warp / HEAD_WARPS, warp % HEAD_WARPS};
}

// The keys of a partition that are visible to the last token of a request.
__device__ __forceinline__ Seen seen_of(const DecodeStep &step, const Partition &part) {
    const int position = step.seq_lens[part.request] - 1;
    int first = part.begin;
    if (step.window > 0) first = larger(first, position + 1 - step.window);
    if (step.chunk > 0) first = larger(first, position / step.chunk * step.chunk);
    return {first, part.end};
}

// K and V of one KV head for one chunk, distributed over the lanes of a warp: lane i has page i.
struct Rows {
    const char *keys;      // of this head in page 0
    const char *values;
    long long page_stride;
    int first_page;        // index of the chunk's first page in the table
    int page;              // page id of this lane
    int page_shift;
};

// A thread's part of a tile, loaded or in flight.
struct Tile {
    uint4 vectors[LOADS][VECTORS];
};

// The tile to load next.
struct TileRows {
    const char *rows;
    int begin;  // its first key
};

__device__ __forceinline__ int pages_of_chunk(
    const int *table, int chunk_begin, int end, int page_shift, int lane
) {
    const int index = (chunk_begin >> page_shift) + lane;
    return index <= (end - 1) >> page_shift ? table[index] : 0;
}

// The first key of a warp in each chunk, and the distance between its tiles.
__device__ __forceinline__ int first_tile(const Thread &thread) { return thread.key_warp * TILE; }
constexpr int NEXT_TILE = KEY_WARPS * TILE;

// Returns the tile of K or V from key `begin` on. All threads of the warp must call it.
__device__ __forceinline__ TileRows find_tile(const Rows &rows, const char *base, int begin) {
    const int page = __shfl_sync(
        0xFFFFFFFFu, rows.page, ((begin >> rows.page_shift) - rows.first_page) & 31);
    const int row = begin & ((1 << rows.page_shift) - 1);
    return {base + page * rows.page_stride + row * (D * STORED_BYTES), begin};
}

// Loads this thread's part of one row of a tile; zeros for a hidden key, which is not read.
__device__ __forceinline__ void load_row(
    const TileRows &next, const Seen &seen, const Thread &thread, int load, Tile *tile
) {
    const int row = load * ROWS + thread.row, key = next.begin + row;
    const bool is_seen = key >= seen.begin && key < seen.end;
#pragma unroll
    for (int j = 0; j < VECTORS; ++j) {
        const int vector = j * THREADS + thread.member;
        tile->vectors[load][j] = make_uint4(0, 0, 0, 0);
        if (is_seen && vector < ROW_VECTORS) {
            const uint4 *at = (const uint4 *)(next.rows + row * (D * STORED_BYTES)) + vector;
            tile->vectors[load][j] = __ldg(at);
        }
    }
}

// Converts a loaded row, and reuses its registers to load the same row of `next`.
__device__ __forceinline__ void take_row(
    const TileRows &next, const Seen &seen, const Thread &thread, int load, Tile *tile,
    float (&elements)[ELEMENTS]
) {
#pragma unroll
    for (int j = 0; j < VECTORS; ++j) {
        floats_of<STORED>(tile->vectors[load][j], elements + j * PER_VECTOR);
    }
    load_row(next, seen, thread, load, tile);
}

// Elements of a query from `first` on, as many as in one load or one vector of K. If K is wider
// than q, a vector of K is half a load.
constexpr int PER_LOAD = 16 / QUERY_BYTES;
constexpr int PER_PIECE = smaller(PER_LOAD, PER_VECTOR);

__device__ __forceinline__ void load_piece(const char *row, int first, float *out) {
    const uint4 loaded = __ldg((const uint4 *)(row + QUERY_BYTES * (first / PER_LOAD * PER_LOAD)));
    float all[PER_LOAD];
    floats_of<QUERY>(loaded, all);
    const bool is_second = first % PER_LOAD != 0;
#pragma unroll
    for (int i = 0; i < PER_PIECE; ++i) {
        out[i] = (is_second ? all[PER_LOAD - PER_PIECE + i] : all[i]);
    }
}

// Loads the queries of a warp's heads; each thread gets the same elements that it has of a key.
__device__ __forceinline__ void load_queries(
    const DecodeStep &step, int token, int kv_head, int first_head, const Thread &thread,
    float (&q)[TILE_HEADS][ELEMENTS]
) {
#pragma unroll
    for (int h = 0; h < TILE_HEADS; ++h) {
        const int head = first_head + h;
        const char *row = (const char *)step.q + QUERY_BYTES * (
            token * step.q_token_stride + (kv_head * step.group + head) * step.q_head_stride);
#pragma unroll
        for (int i = 0; i < ELEMENTS; i += PER_PIECE) {
            const int vector = i / PER_VECTOR * THREADS + thread.member;
#pragma unroll
            for (int j = 0; j < PER_PIECE; ++j) q[h][i + j] = 0.0f;
            if (head < step.group && vector < ROW_VECTORS) {
                load_piece(row, vector * PER_VECTOR + i % PER_VECTOR, &q[h][i]);
            }
        }
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) q[h][i] *= step.q_factor;
    }
}

// Reduces SCORES sums per thread over a thread group. In each iteration a thread sends half of its
// sums and adds the received ones to the other half. Thread m ends with the sums from
// m / TWINS * OWN_SCORES on, at the start of its array.
__device__ __forceinline__ void fold(float (&sums)[SCORES], int member) {
    int left = SCORES;
#pragma unroll
    for (int bit = THREADS / 2; bit >= 1; bit /= 2) {
        if (left == 1) {
            sums[0] += __shfl_xor_sync(0xFFFFFFFFu, sums[0], bit);
            continue;
        }
        left /= 2;
        const bool is_upper = member & bit;
#pragma unroll
        for (int i = 0; i < SCORES / 2; ++i) {
            if (i >= left) break;
            const float given = is_upper ? sums[i] : sums[i + left];
            const float kept = is_upper ? sums[i + left] : sums[i];
            sums[i] = kept + __shfl_xor_sync(0xFFFFFFFFu, given, bit);
        }
    }
}

// Computes the scores of the warp's heads for its keys of a chunk; returns the largest of this
// thread's own scores. Afterwards the warp's first tile of V is in flight.
__device__ __forceinline__ float score_chunk(
    const DecodeStep &step, const Seen &seen, int chunk_begin, const Rows &rows,
    const Thread &thread, const float (&q)[TILE_HEADS][ELEMENTS],
    float (*scores)[BLOCK_HEADS],  // [CHUNK, BLOCK_HEADS], shared
    Tile *tile
) {
    const int own = thread.member / TWINS * OWN_SCORES;  // the first of this thread's own scores
    const int head = thread.head_warp * TILE_HEADS + own / LOADS;
    const int first = first_tile(thread), end = smaller(CHUNK, seen.end - chunk_begin);
    float largest = NOTHING;
    if (first < end) {
        const TileRows next = find_tile(rows, rows.keys, chunk_begin + first);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) load_row(next, seen, thread, i, tile);
    }
    for (int at = first; at < end; at += NEXT_TILE) {
        const int tile_begin = chunk_begin + at;
        const bool is_last = at + NEXT_TILE >= end;
        const TileRows next = find_tile(
            rows, is_last ? rows.values : rows.keys,
            chunk_begin + (is_last ? first : at + NEXT_TILE));
        float sums[SCORES];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            float k[ELEMENTS];
            take_row(next, seen, thread, i, tile, k);
#pragma unroll
            for (int h = 0; h < TILE_HEADS; ++h) {
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < ELEMENTS; ++n) sum = fmaf(q[h][n], k[n], sum);
                sums[h * LOADS + i] = sum;
            }
        }
        fold(sums, thread.member);
#pragma unroll
        for (int i = 0; i < OWN_SCORES; ++i) {
            const int row = (own % LOADS + i) * ROWS + thread.row, key = tile_begin + row;
            float score = sums[i];
            if (step.soft_cap > 0.0f) score = step.soft_cap * tanhf(score);
            if (key < seen.begin || key >= seen.end) score = NOTHING;
            if (thread.member % TWINS == 0) scores[at + row][head] = score;
            largest = fmaxf(largest, score);
        }
    }
    return largest;
}

// Adds weight * value of the warp's keys of a chunk to its sums; the first tile is in flight.
__device__ __forceinline__ void add_values(
    const Seen &seen, int chunk_begin, const Rows &rows, const Thread &thread,
    const float (*weights)[BLOCK_HEADS], float (&sums)[TILE_HEADS][ELEMENTS], Tile *tile
) {
    const int end = smaller(CHUNK, seen.end - chunk_begin);
    for (int at = first_tile(thread); at < end; at += NEXT_TILE) {
        const bool is_last = at + NEXT_TILE >= end;  // then all keys of `next` are hidden
        const TileRows next = find_tile(
            rows, rows.values, is_last ? seen.end : chunk_begin + at + NEXT_TILE);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const float *of_key =
                weights[at + i * ROWS + thread.row] + thread.head_warp * TILE_HEADS;
            float weight[TILE_HEADS], v[ELEMENTS];
            if constexpr (TILE_HEADS == 4) {
                *(float4 *)weight = *(const float4 *)of_key;
            } else {
#pragma unroll
                for (int h = 0; h < TILE_HEADS; ++h) weight[h] = of_key[h];
            }
            take_row(next, seen, thread, i, tile, v);
#pragma unroll
            for (int h = 0; h < TILE_HEADS; ++h) {
#pragma unroll
                for (int n = 0; n < ELEMENTS; ++n) sums[h][n] = fmaf(weight[h], v[n], sums[h][n]);
            }
        }
    }
}

// Destination of a block's sums. It is in shared memory because only the end of the kernel reads
// it, and the main loop needs the registers.
struct Destination {
    int slot;        // of a partial output; -1: it is the output
    int token;
    int kv_head;
    int first_head;  // in the group of the KV head
};

// Shared memory of a block. Sums of values reuse the memory of the scores.
struct __align__(16) Shared {
    union {
        float scores[CHUNK][BLOCK_HEADS];
        float sums[KEY_WARPS][BLOCK_HEADS][D];
    };
    float warp_largest[KEY_WARPS][BLOCK_HEADS];
    float warp_weights[WARPS][BLOCK_HEADS];
    Destination to;
};

// Writes the largest score of each of the warp's heads to shared memory.
__device__ __forceinline__ void share_largest(
    float largest, const Thread &thread, float (*warp_largest)[BLOCK_HEADS]
) {
    // Threads of one head differ in the lowest bits of their index in the group, and in the group.
    constexpr int HEAD_THREADS = larger(1, THREADS / TILE_HEADS);
    largest = largest_over(largest, 1, HEAD_THREADS / 2);
    largest = largest_over(largest, THREADS, 16);
    const int tile_head = thread.member / HEAD_THREADS;
    if (thread.row == 0 && thread.member % HEAD_THREADS == 0 && tile_head < TILE_HEADS) {
        warp_largest[thread.key_warp][thread.head_warp * TILE_HEADS + tile_head] = largest;
    }
}

__device__ __forceinline__ float largest_of_head(
    const float (*warp_largest)[BLOCK_HEADS], int head, float before
) {
    float largest = before;
#pragma unroll
    for (int warp = 0; warp < KEY_WARPS; ++warp) {
        largest = fmaxf(largest, warp_largest[warp][head]);
    }
    return largest;
}

// Turns this thread's part of the scores into weights, all of one head; returns their sum.
__device__ __forceinline__ float raise_scores(
    float (*scores)[BLOCK_HEADS], int num_keys, int head, float largest
) {
    float sum = 0.0f;
    for (int key = threadIdx.x / BLOCK_HEADS; key < num_keys; key += BLOCK_THREADS / BLOCK_HEADS) {
        const float weight = exp2f(scores[key][head] - largest);
        scores[key][head] = weight;
        sum += weight;
    }
    return sum;
}

// Returns the sum of a head's weights including its sink, and updates `largest`, to which the
// weights are relative.
__device__ __forceinline__ float with_sink(
    const float *sinks, int head, float *largest, float weights
) {
    if (sinks == nullptr) return weights;
    const float sink = sinks[head] * LOG2_E, before = *largest;
    *largest = fmaxf(before, sink);
    return weights * exp2f(before - *largest) + exp2f(sink - *largest);
}

// Writes a block's sums: the output, or a partial output if there are other partitions.
__device__ __forceinline__ void write_sums(
    const DecodeStep &step, const Shared &shared, const float *head_largest
) {
    const Destination to = shared.to;
    const int num_heads = step.num_kv_heads * step.group;
    for (int at = threadIdx.x; at < BLOCK_HEADS * D; at += BLOCK_THREADS) {
        const int block_head = at / D, group_head = to.first_head + block_head;
        const int head = to.kv_head * step.group + group_head;
        if (group_head >= step.group) break;
        float sum = 0.0f, weights = 0.0f;
#pragma unroll
        for (int warp = 0; warp < KEY_WARPS; ++warp) sum += shared.sums[warp][block_head][at % D];
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) weights += shared.warp_weights[warp][block_head];
        float largest = head_largest[block_head];
        if (to.slot < 0) {
            const float before = largest;
            const float all = with_sink(step.sinks, head, &largest, weights);
            sum *= exp2f(before - largest) * step.v_factor / all;
            store_number(step.out, ((long long)to.token * num_heads + head) * D + at % D, sum);
            continue;
        }
        const long long row = (long long)to.slot * num_heads + head;
        step.partial_out[row * D + at % D] = sum;
        if (at % D == 0) {
            step.partial_stats[2 * row] = largest;
            step.partial_stats[2 * row + 1] = weights;
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS_A_MULTIPROCESSOR)
paged_decode(const DecodeStep step) {
    __shared__ Shared shared;
    __shared__ float head_largest[BLOCK_HEADS];
    const int head_groups = (step.group + BLOCK_HEADS - 1) / BLOCK_HEADS;
    const int blocks_a_partition = step.num_kv_heads * head_groups;
    const int index = blockIdx.x / blocks_a_partition, slice = blockIdx.x % blocks_a_partition;
    if (index >= *step.num_partitions) return;
    const Partition part = step.partitions[index];
    const Seen seen = seen_of(step, part);
    const int token = step.query_start[part.request];
    const int kv_head = slice / head_groups;
    const int first_head = slice % head_groups * BLOCK_HEADS;  // in the group of the KV head
    if (threadIdx.x == 0) shared.to = {part.slot, token, kv_head, first_head};
    const Thread thread = this_thread();
    const int page_shift = step.page_shift, raised_head = threadIdx.x % BLOCK_HEADS;
    const long long side = ((long long)D * STORED_BYTES) << page_shift;  // of one head in a page
    const int *table = step.block_table + part.request * step.table_stride;

    float q[TILE_HEADS][ELEMENTS], sums[TILE_HEADS][ELEMENTS] = {};
    load_queries(step, token, kv_head, first_head + thread.head_warp * TILE_HEADS, thread, q);
    float tile_largest[TILE_HEADS], raised_largest = NOTHING, weights = 0.0f;
#pragma unroll
    for (int h = 0; h < TILE_HEADS; ++h) tile_largest[h] = NOTHING;

    for (int chunk = part.begin; chunk < part.end; chunk += CHUNK) {
        const int page = pages_of_chunk(table, chunk, part.end, page_shift, thread.lane);
        const char *keys = step.pages + kv_head * side, *values = keys + step.num_kv_heads * side;
        const Rows rows = {keys, values, step.page_stride, chunk >> page_shift, page, page_shift};
        Tile tile;
        float (*scores)[BLOCK_HEADS] = shared.scores;
        float (*warp_largest)[BLOCK_HEADS] = shared.warp_largest;
        share_largest(
            score_chunk(step, seen, chunk, rows, thread, q, scores, &tile), thread, warp_largest);
        __syncthreads();
        const float largest = largest_of_head(warp_largest, raised_head, raised_largest);
        const int num_keys = smaller(CHUNK, (part.end - chunk + TILE - 1) / TILE * TILE);
        weights *= exp2f(raised_largest - largest);
        weights += raise_scores(scores, num_keys, raised_head, largest);
        raised_largest = largest;
#pragma unroll
        for (int h = 0; h < TILE_HEADS; ++h) {
            const int head = thread.head_warp * TILE_HEADS + h;
            const float now = largest_of_head(warp_largest, head, tile_largest[h]);
            const float factor = exp2f(tile_largest[h] - now);
#pragma unroll
            for (int n = 0; n < ELEMENTS; ++n) sums[h][n] *= factor;
            tile_largest[h] = now;
        }
        __syncthreads();
        add_values(seen, chunk, rows, thread, scores, sums, &tile);
        __syncwarp();  // the next scores overwrite the weights that the warp has read
    }

    __syncthreads();  // the sums overwrite the scores
    weights = sum_over(weights, BLOCK_HEADS, 16);
    if (thread.lane < BLOCK_HEADS) shared.warp_weights[threadIdx.x / 32][thread.lane] = weights;
    if (threadIdx.x < BLOCK_HEADS) head_largest[threadIdx.x] = raised_largest;
#pragma unroll
    for (int h = 0; h < TILE_HEADS; ++h) {
        float *row = shared.sums[thread.key_warp][thread.head_warp * TILE_HEADS + h];
#pragma unroll
        for (int n = 0; n < ELEMENTS; ++n) {
            const int vector = n / PER_VECTOR * THREADS + thread.member;
            const float sum = sum_over(sums[h][n], THREADS, 16);
            if (thread.row == 0 && vector < ROW_VECTORS) {
                row[vector * PER_VECTOR + n % PER_VECTOR] = sum;
            }
        }
    }
    __syncthreads();
    write_sums(step, shared, head_largest);
}

// ---- combine -----------------------------------------------------------------------------------

constexpr int QUADS = D / 4;                         // float4 vectors of a row
constexpr int STRIPES = BLOCK_THREADS / QUADS;       // partitions that a block reads at a time

// The maximum over the block, returned to all threads.
__device__ __forceinline__ float block_largest(float x) {
    __shared__ float of_warp[WARPS];
    x = largest_over(x, 1, 16);
    __syncthreads();  // the values of the previous call have been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) x = fmaxf(x, of_warp[warp]);
    return x;
}

__device__ __forceinline__ void combine_head(
    const DecodeStep &step, int token, int head, int first, int last
) {
    __shared__ float sums[STRIPES][D];
    __shared__ float weights[STRIPES];
    const int num_heads = step.num_kv_heads * step.group;
    float largest = NOTHING;
    for (int i = first + threadIdx.x; i < last; i += BLOCK_THREADS) {
        largest = fmaxf(largest, step.partial_stats[2 * ((long long)i * num_heads + head)]);
    }
    largest = block_largest(largest);
    const int stripe = threadIdx.x / QUADS, quad = threadIdx.x % QUADS;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float weight = 0.0f;
    if (stripe < STRIPES) {
#pragma unroll 4
        for (int i = first + stripe; i < last; i += STRIPES) {
            const long long row = (long long)i * num_heads + head;
            const float factor = exp2f(step.partial_stats[2 * row] - largest);
            const float4 part = ((const float4 *)(step.partial_out + row * D))[quad];
            weight = fmaf(factor, step.partial_stats[2 * row + 1], weight);
            sum.x = fmaf(factor, part.x, sum.x);
            sum.y = fmaf(factor, part.y, sum.y);
            sum.z = fmaf(factor, part.z, sum.z);
            sum.w = fmaf(factor, part.w, sum.w);
        }
        ((float4 *)sums[stripe])[quad] = sum;
        if (quad == 0) weights[stripe] = weight;
    }
    __syncthreads();
    float all = 0.0f;
#pragma unroll
    for (int other = 0; other < STRIPES; ++other) all += weights[other];
    const float before = largest;
    all = with_sink(step.sinks, head, &largest, all);
    const float factor = exp2f(before - largest) * step.v_factor / all;
    for (int d = threadIdx.x; d < D; d += BLOCK_THREADS) {
        float value = 0.0f;
#pragma unroll
        for (int other = 0; other < STRIPES; ++other) value += sums[other][d];
        store_number(step.out, ((long long)token * num_heads + head) * D + d, value * factor);
    }
}

// Block x merges request x, and writes zeros for token x if that is padding.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) combine(const DecodeStep step) {
    const int index = blockIdx.x, num_heads = step.num_kv_heads * step.group;
    const int first_head = blockIdx.y * step.combined_heads;
    const int last_head = smaller(num_heads, first_head + step.combined_heads);
    if (index < step.num_requests && step.parts[2 * index + 1] > 0) {
        const int token = step.query_start[index], first = step.parts[2 * index];
        for (int head = first_head; head < last_head; ++head) {
            combine_head(step, token, head, first, first + step.parts[2 * index + 1]);
        }
    }
    if (index < step.num_tokens && index >= step.query_start[step.num_requests]) {
        for (int at = first_head * D + threadIdx.x; at < last_head * D; at += BLOCK_THREADS) {
            store_number(step.out, (long long)index * num_heads * D + at, 0.0f);
        }
    }
}
