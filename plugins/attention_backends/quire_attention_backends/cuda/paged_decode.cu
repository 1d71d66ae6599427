// Attention of one query a request over paged K and V: each row is read once, 16 bytes a thread.
//
// Not measured yet: the numbers below are counted, not timed.
//
//   paged_decode   (partitions * K * head groups) blocks of 128 threads
//                  a block takes one partition of one request for up to 16 query heads of one KV
//                  head, so that K and V come from memory once; those of one partition are
//                  neighbours and read the same pages; blocks without work stand last, and leave
//   combine        (tokens, H / heads a block) blocks of 128 threads
//                  joins the partitions of requests that have several; the others are done
//
// How contexts are cut into partitions is planned once a step, on the device and by the total work:
// `split_plan.py`. The grid depends on the sizes of buffers alone.
//
// Inside paged_decode a row of K or V is read by a thread group, 16 bytes a thread:
//
//                 float32   16 bit   float8        a warp of 32 threads holds 32 / THREADS rows at a
//   D  64              16        8        4        time, and has 2 to 8 of these loads in flight:
//   D  80, 96, 128     32       16        8        at most 16 keys, 1 to 4 KiB a warp (2 KiB with
//   D  256        32 twice      32       16        four heads and 16 bit), four times that a block
//
// Registers are what limits it: with 16 bit, D 128 and four heads a warp 3 blocks fit on a
// multiprocessor, so 24 KiB are in flight there, where 4.8 TB/s for 0.7 us are 26 KiB. With float8 and
// four heads only 2 do, and 16 KiB: too few to be as quick as the memory.
//
// A chunk of 256 keys goes through three phases, with a barrier behind each of the first two:
//
//   scores    thread groups multiply K by the queries they keep in registers, and fold their sums
//             so that in the end each thread has a score of its own (1 shuffle a score, not 4)
//   softmax   the largest score of each head in a warp, then in the block; all threads raise
//   values    thread groups multiply V by the weights, and keep sums in registers across chunks
//
// A warp loads a row of its next tile as soon as the row that it has there is widened, before it
// multiplies: the next tile is under way during the arithmetic of this one and takes no registers of
// its own. After the last tile of K comes the first of V, which is under way during the softmax. From
// a chunk to the next one nothing is under way in a warp; other warps and blocks are to fill that gap.
//
// Four heads make a warp's tile. With up to 4 heads a KV head the four warps share the keys; with up
// to 8 two pairs share them; beyond, each warp has other heads and reads the keys of its neighbours
// from the first-level cache. Shared memory: a float for each key of a chunk and each head of the
// block, 1 to 16 KiB.
//
// What is compiled is chosen by macros: QUERY (what q and the answer are: 32 for float32, 16 for
// float16, 116 for bfloat16), STORED (the same for K and V, or 8 for float8), HEAD_DIM, TILE_HEADS (a
// warp: 1, 2 or 4) and HEAD_WARPS (1, 2 or 4). It includes nothing, so that NVRTC needs no headers.

constexpr int D = HEAD_DIM;
constexpr int WARPS = 4;
constexpr int BLOCK_THREADS = 32 * WARPS;
constexpr int KEY_WARPS = WARPS / HEAD_WARPS;
constexpr int BLOCK_HEADS = TILE_HEADS * HEAD_WARPS;
constexpr int CHUNK = 256;      // keys
constexpr int PAGE_TILE = 16;   // keys that lie in one page for certain: it divides every block size
constexpr float LOG2_E = 1.44269504088896341f;

#define NOTHING __uint_as_float(0xFF800000u)  // the score of a key that is not seen
#define ANYWHERE __host__ __device__ constexpr
ANYWHERE int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }
ANYWHERE int smaller(int a, int b) { return a < b ? a : b; }
ANYWHERE int larger(int a, int b) { return a < b ? b : a; }

constexpr int QUERY_BYTES = QUERY == 32 ? 4 : 2;
constexpr int STORED_BYTES = STORED == 32 ? 4 : STORED == 8 ? 1 : 2;
constexpr int PER_VECTOR = 16 / STORED_BYTES;  // numbers
constexpr int ROW_VECTORS = D / PER_VECTOR;
constexpr int THREADS = smaller(32, power_of_two(ROW_VECTORS));  // of a thread group
constexpr int VECTORS = (ROW_VECTORS + THREADS - 1) / THREADS;   // of a row in one thread
constexpr int NUMBERS = VECTORS * PER_VECTOR;
constexpr int ROWS = 32 / THREADS;  // that a warp reads at a time
constexpr int LOADS = smaller(TILE_HEADS == 4 ? 4 : 8, PAGE_TILE / ROWS) / VECTORS;
constexpr int TILE = ROWS * LOADS;  // keys of a warp's tile
constexpr int SCORES = TILE_HEADS * LOADS;                  // of a thread group's tile
constexpr int OWN_SCORES = larger(1, SCORES / THREADS);     // of a thread, once they are folded
constexpr int TWINS = larger(1, THREADS / SCORES);          // threads that end with the same score
// Queries and sums are most of a thread's registers; so many blocks still run without spilling them.
constexpr bool FILLS_GROUPS = ROW_VECTORS == THREADS * VECTORS;
constexpr int BLOCKS_A_MULTIPROCESSOR =
    TILE_HEADS < 4 && D <= 128 ? (FILLS_GROUPS ? 4 : 3) : TILE_HEADS > 1 && NUMBERS > 8 ? 2 : 3;

static_assert(D % PER_VECTOR == 0, "rows are whole vectors");
static_assert(OWN_SCORES <= LOADS, "a thread's own scores are of one head");
static_assert(PAGE_TILE % TILE == 0 && CHUNK % (TILE * WARPS) == 0, "tiles fill pages and chunks");
static_assert(CHUNK % PAGE_TILE == 0 && CHUNK / PAGE_TILE < 32, "a lane for each page of a chunk");

// One piece of work: keys `begin` to `end` of a request; `begin` is a multiple of PAGE_TILE.
struct __align__(16) Partition {
    int request;
    int begin;
    int end;
    int slot;  // of its partial answer; -1: it is the answer
};

// What both grids are told. Python has the same: `cuda_attention.DecodeStep`.
struct DecodeStep {
    void *out;                    // [T, H, D], contiguous
    const void *q;                // [T, H, D]
    const char *pages;            // [B, 2, K, S, D]
    const int *block_table;       // [R, ...]
    const int *query_start;       // [R + 1]
    const int *seq_lens;          // [R]
    const int *num_partitions;    // [1]
    const Partition *partitions;  // as `SplitPlan.items`
    const int *parts;             // [R, 2]: a request's first slot, and how many it has; 0: none
    float *partial_out;           // [slots, H, D], sums of weight * value
    float *partial_stats;         // [slots, H, 2]: largest score, in powers of two; sum of weights
    const float *sinks;           // [H] or null
    long long q_token_stride;     // numbers
    long long q_head_stride;
    long long page_stride;        // bytes
    long long table_stride;
    int num_requests;             // R
    int num_tokens;               // T
    int num_kv_heads;             // K
    int group;                    // H / K
    int page_shift;               // S is 2 to this power
    int combined_heads;           // that a block of `combine` takes
    int window;                   // tokens that a query sees; 0: all
    int chunk;                    // a query sees the tokens of its chunk; 0: all
    float q_factor;               // on scores: what is left is in powers of two, or goes into tanh
    float soft_cap;               // in powers of two; 0: none
    float v_factor;               // on the answer
    int unused;
};

// ---- numbers -----------------------------------------------------------------------------------

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

// The numbers of 16 bytes; of float8 they are 1/256 of the values: a code moved by seven bits is a
// float16, subnormal ones included.
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

// The sum over a warp's or the largest of its threads whose numbers differ in the bits from `least`
// to `most`; all of them get it.
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

// The keys that a block may read.
struct Seen {
    int begin;
    int end;
};

struct Place {
    int lane;       // in the warp
    int member;     // in the thread group
    int row;        // which of the warp's thread groups
    int key_warp;   // which share of the keys
    int head_warp;  // which tile of the heads
};

__device__ __forceinline__ Place place_of_thread() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return {lane, lane % THREADS, lane / THREADS, warp / HEAD_WARPS, warp % HEAD_WARPS};
}

// What the last token of a request sees of a partition.
__device__ __forceinline__ Seen seen_of(const DecodeStep &step, const Partition &part) {
    const int position = step.seq_lens[part.request] - 1;
    int first = part.begin;
    if (step.window > 0) first = larger(first, position + 1 - step.window);
    if (step.chunk > 0) first = larger(first, position / step.chunk * step.chunk);
    return {first, part.end};
}

// K and V of one KV head, as the lanes of a warp know them for one chunk: lane i has page i.
struct Rows {
    const char *keys;      // of this head in page 0
    const char *values;
    long long page_stride;
    int first_page;        // of the chunk, in the table
    int page;              // of this lane
    int page_shift;
};

// What a thread has of a tile, or what is on its way to it.
struct Tile {
    uint4 vectors[LOADS][VECTORS];
};

// A tile to load.
struct Ahead {
    const char *rows;
    int begin;  // its first key
};

__device__ __forceinline__ int pages_of_chunk(
    const int *table, int chunk_begin, int end, int page_shift, int lane
) {
    const int index = (chunk_begin >> page_shift) + lane;
    return index <= (end - 1) >> page_shift ? table[index] : 0;
}

// The first tile of a warp in each chunk, and from each of its tiles to the next.
__device__ __forceinline__ int first_tile(const Place &place) { return place.key_warp * TILE; }
constexpr int NEXT_TILE = KEY_WARPS * TILE;

// The tile of K or V from key `begin` on. Every thread of the warp takes part.
__device__ __forceinline__ Ahead find_tile(const Rows &rows, const char *base, int begin) {
    const int page = __shfl_sync(
        0xFFFFFFFFu, rows.page, ((begin >> rows.page_shift) - rows.first_page) & 31);
    const int row = begin & ((1 << rows.page_shift) - 1);
    return {base + page * rows.page_stride + row * (D * STORED_BYTES), begin};
}

// Load this thread's part of one row of a tile; zeros for a key that is not seen, and not read.
__device__ __forceinline__ void load_row(
    const Ahead &ahead, const Seen &seen, const Place &place, int load, Tile *tile
) {
    const int row = load * ROWS + place.row, key = ahead.begin + row;
    const bool is_seen = key >= seen.begin && key < seen.end;
#pragma unroll
    for (int j = 0; j < VECTORS; ++j) {
        const int vector = j * THREADS + place.member;
        tile->vectors[load][j] = make_uint4(0, 0, 0, 0);
        if (is_seen && vector < ROW_VECTORS) {
            const uint4 *at = (const uint4 *)(ahead.rows + row * (D * STORED_BYTES)) + vector;
            tile->vectors[load][j] = __ldg(at);
        }
    }
}

// The numbers of a row that has arrived; its place is then free for the same row of `ahead`.
__device__ __forceinline__ void take_row(
    const Ahead &ahead, const Seen &seen, const Place &place, int load, Tile *tile,
    float (&numbers)[NUMBERS]
) {
#pragma unroll
    for (int j = 0; j < VECTORS; ++j) {
        floats_of<STORED>(tile->vectors[load][j], numbers + j * PER_VECTOR);
    }
    load_row(ahead, seen, place, load, tile);
}

// Numbers of a query from `number` on, as many as one load or one vector of K has. Where K is wider
// than q, a vector of K is half a load.
constexpr int PER_LOAD = 16 / QUERY_BYTES;
constexpr int PER_PIECE = smaller(PER_LOAD, PER_VECTOR);

__device__ __forceinline__ void load_piece(const char *row, int number, float *out) {
    const uint4 loaded = __ldg((const uint4 *)(row + QUERY_BYTES * (number / PER_LOAD * PER_LOAD)));
    float all[PER_LOAD];
    floats_of<QUERY>(loaded, all);
    const bool is_second = number % PER_LOAD != 0;
#pragma unroll
    for (int i = 0; i < PER_PIECE; ++i) {
        out[i] = (is_second ? all[PER_LOAD - PER_PIECE + i] : all[i]);
    }
}

// The queries of a warp's heads, where the threads hold the same numbers of a key.
__device__ __forceinline__ void load_queries(
    const DecodeStep &step, int token, int kv_head, int first_head, const Place &place,
    float (&q)[TILE_HEADS][NUMBERS]
) {
#pragma unroll
    for (int h = 0; h < TILE_HEADS; ++h) {
        const int head = first_head + h;
        const char *row = (const char *)step.q + QUERY_BYTES * (
            token * step.q_token_stride + (kv_head * step.group + head) * step.q_head_stride);
#pragma unroll
        for (int i = 0; i < NUMBERS; i += PER_PIECE) {
            const int vector = i / PER_VECTOR * THREADS + place.member;
#pragma unroll
            for (int j = 0; j < PER_PIECE; ++j) q[h][i + j] = 0.0f;
            if (head < step.group && vector < ROW_VECTORS) {
                load_piece(row, vector * PER_VECTOR + i % PER_VECTOR, &q[h][i]);
            }
        }
#pragma unroll
        for (int i = 0; i < NUMBERS; ++i) q[h][i] *= step.q_factor;
    }
}

// Sums over a thread group of SCORES numbers each. At every step a thread gives away half of what it
// has and adds what it gets to the other half: thread m ends with the sums from
// m / TWINS * OWN_SCORES on, in the first places.
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

// Scores of the warp's heads with its share of a chunk; returns the largest of this thread's own.
// When it ends, the warp's first tile of V is on its way.
__device__ __forceinline__ float score_chunk(
    const DecodeStep &step, const Seen &seen, int chunk_begin, const Rows &rows,
    const Place &place, const float (&q)[TILE_HEADS][NUMBERS],
    float (*scores)[BLOCK_HEADS],  // [CHUNK, BLOCK_HEADS], shared
    Tile *tile
) {
    const int own = place.member / TWINS * OWN_SCORES;  // the first of this thread's own scores
    const int head = place.head_warp * TILE_HEADS + own / LOADS;
    const int first = first_tile(place), end = smaller(CHUNK, seen.end - chunk_begin);
    float largest = NOTHING;
    if (first < end) {
        const Ahead ahead = find_tile(rows, rows.keys, chunk_begin + first);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) load_row(ahead, seen, place, i, tile);
    }
    for (int at = first; at < end; at += NEXT_TILE) {
        const int tile_begin = chunk_begin + at;
        const bool is_last = at + NEXT_TILE >= end;
        const Ahead ahead = find_tile(
            rows, is_last ? rows.values : rows.keys,
            chunk_begin + (is_last ? first : at + NEXT_TILE));
        float sums[SCORES];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            float k[NUMBERS];
            take_row(ahead, seen, place, i, tile, k);
#pragma unroll
            for (int h = 0; h < TILE_HEADS; ++h) {
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < NUMBERS; ++n) sum = fmaf(q[h][n], k[n], sum);
                sums[h * LOADS + i] = sum;
            }
        }
        fold(sums, place.member);
#pragma unroll
        for (int i = 0; i < OWN_SCORES; ++i) {
            const int row = (own % LOADS + i) * ROWS + place.row, key = tile_begin + row;
            float score = sums[i];
            if (step.soft_cap > 0.0f) score = step.soft_cap * tanhf(score);
            if (key < seen.begin || key >= seen.end) score = NOTHING;
            if (place.member % TWINS == 0) scores[at + row][head] = score;
            largest = fmaxf(largest, score);
        }
    }
    return largest;
}

// Add weight * value of the warp's share of a chunk to its sums; its first tile is on its way.
__device__ __forceinline__ void add_values(
    const Seen &seen, int chunk_begin, const Rows &rows, const Place &place,
    const float (*weights)[BLOCK_HEADS], float (&sums)[TILE_HEADS][NUMBERS], Tile *tile
) {
    const int end = smaller(CHUNK, seen.end - chunk_begin);
    for (int at = first_tile(place); at < end; at += NEXT_TILE) {
        const bool is_last = at + NEXT_TILE >= end;  // then no key of `ahead` is seen
        const Ahead ahead = find_tile(
            rows, rows.values, is_last ? seen.end : chunk_begin + at + NEXT_TILE);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const float *of_key = weights[at + i * ROWS + place.row] + place.head_warp * TILE_HEADS;
            float weight[TILE_HEADS], v[NUMBERS];
            if constexpr (TILE_HEADS == 4) {
                *(float4 *)weight = *(const float4 *)of_key;
            } else {
#pragma unroll
                for (int h = 0; h < TILE_HEADS; ++h) weight[h] = of_key[h];
            }
            take_row(ahead, seen, place, i, tile, v);
#pragma unroll
            for (int h = 0; h < TILE_HEADS; ++h) {
#pragma unroll
                for (int n = 0; n < NUMBERS; ++n) sums[h][n] = fmaf(weight[h], v[n], sums[h][n]);
            }
        }
    }
}

// Where a block's sums go. Only its end asks, and the loop before that has no registers to spare.
struct Destination {
    int slot;        // of a partial answer; -1: it is the answer
    int token;
    int kv_head;
    int first_head;  // in the group of the KV head
};

// What a block shares. Sums of values take the place of the scores once those are not needed.
struct __align__(16) Shared {
    union {
        float scores[CHUNK][BLOCK_HEADS];
        float sums[KEY_WARPS][BLOCK_HEADS][D];
    };
    float warp_largest[KEY_WARPS][BLOCK_HEADS];
    float warp_weights[WARPS][BLOCK_HEADS];
    Destination to;
};

// The largest score of a warp's heads, in the warp, for the block to see.
__device__ __forceinline__ void share_largest(
    float largest, const Place &place, float (*warp_largest)[BLOCK_HEADS]
) {
    // Threads of one head differ in the lowest bits of their place in the group, and in the group.
    constexpr int HEAD_THREADS = larger(1, THREADS / TILE_HEADS);
    largest = largest_over(largest, 1, HEAD_THREADS / 2);
    largest = largest_over(largest, THREADS, 16);
    const int tile_head = place.member / HEAD_THREADS;
    if (place.row == 0 && place.member % HEAD_THREADS == 0 && tile_head < TILE_HEADS) {
        warp_largest[place.key_warp][place.head_warp * TILE_HEADS + tile_head] = largest;
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

// Turn this thread's share of the scores into weights; returns their sum. The thread keeps to a head.
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

// What weights of a head add up to with its sink, beside weights relative to `largest`.
__device__ __forceinline__ float with_sink(
    const float *sinks, int head, float *largest, float weights
) {
    if (sinks == nullptr) return weights;
    const float sink = sinks[head] * LOG2_E, before = *largest;
    *largest = fmaxf(before, sink);
    return weights * exp2f(before - *largest) + exp2f(sink - *largest);
}

// Write a block's sums: the answer, or a part of it where there are other partitions.
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
    const Place place = place_of_thread();
    const int page_shift = step.page_shift, raised_head = threadIdx.x % BLOCK_HEADS;
    const long long side = ((long long)D * STORED_BYTES) << page_shift;  // of one head in a page
    const int *table = step.block_table + part.request * step.table_stride;

    float q[TILE_HEADS][NUMBERS], sums[TILE_HEADS][NUMBERS] = {};
    load_queries(step, token, kv_head, first_head + place.head_warp * TILE_HEADS, place, q);
    float tile_largest[TILE_HEADS], raised_largest = NOTHING, weights = 0.0f;
#pragma unroll
    for (int h = 0; h < TILE_HEADS; ++h) tile_largest[h] = NOTHING;

    for (int chunk = part.begin; chunk < part.end; chunk += CHUNK) {
        const int page = pages_of_chunk(table, chunk, part.end, page_shift, place.lane);
        const char *keys = step.pages + kv_head * side, *values = keys + step.num_kv_heads * side;
        const Rows rows = {keys, values, step.page_stride, chunk >> page_shift, page, page_shift};
        Tile tile;
        float (*scores)[BLOCK_HEADS] = shared.scores;
        float (*warp_largest)[BLOCK_HEADS] = shared.warp_largest;
        share_largest(
            score_chunk(step, seen, chunk, rows, place, q, scores, &tile), place, warp_largest);
        __syncthreads();
        const float largest = largest_of_head(warp_largest, raised_head, raised_largest);
        const int num_keys = smaller(CHUNK, (part.end - chunk + TILE - 1) / TILE * TILE);
        weights *= exp2f(raised_largest - largest);
        weights += raise_scores(scores, num_keys, raised_head, largest);
        raised_largest = largest;
#pragma unroll
        for (int h = 0; h < TILE_HEADS; ++h) {
            const int head = place.head_warp * TILE_HEADS + h;
            const float now = largest_of_head(warp_largest, head, tile_largest[h]);
            const float factor = exp2f(tile_largest[h] - now);
#pragma unroll
            for (int n = 0; n < NUMBERS; ++n) sums[h][n] *= factor;
            tile_largest[h] = now;
        }
        __syncthreads();
        add_values(seen, chunk, rows, place, scores, sums, &tile);
        __syncwarp();  // the weights a warp read are of the keys and heads that it scores next
    }

    __syncthreads();  // the scores make room
    weights = sum_over(weights, BLOCK_HEADS, 16);
    if (place.lane < BLOCK_HEADS) shared.warp_weights[threadIdx.x / 32][place.lane] = weights;
    if (threadIdx.x < BLOCK_HEADS) head_largest[threadIdx.x] = raised_largest;
#pragma unroll
    for (int h = 0; h < TILE_HEADS; ++h) {
        float *row = shared.sums[place.key_warp][place.head_warp * TILE_HEADS + h];
#pragma unroll
        for (int n = 0; n < NUMBERS; ++n) {
            const int vector = n / PER_VECTOR * THREADS + place.member;
            const float sum = sum_over(sums[h][n], THREADS, 16);
            if (place.row == 0 && vector < ROW_VECTORS) {
                row[vector * PER_VECTOR + n % PER_VECTOR] = sum;
            }
        }
    }
    __syncthreads();
    write_sums(step, shared, head_largest);
}

// ---- combine -----------------------------------------------------------------------------------

constexpr int QUADS = D / 4;                         // of a row
constexpr int STRIPES = BLOCK_THREADS / QUADS;       // partitions that a block reads at a time

// The largest over the block, for every thread of it.
__device__ __forceinline__ float block_largest(float x) {
    __shared__ float of_warp[WARPS];
    x = largest_over(x, 1, 16);
    __syncthreads();  // what the call before left has been read
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

// Block x looks after request x, and after token x where that is padding: its answer is zero.
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
