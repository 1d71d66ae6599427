// Peak rates of the processor: bytes read from memory, fused multiply-adds in registers, and
// products of pairs of bfloat16 and of four bytes.
#include <atomic>

#include "export.h"
#include "threads.h"
#include "tile.h"

// Reads `bytes` (a multiple of 4 KiB a thread is best) with all threads, several streams each.
EXPORT void read_memory(const float* memory, int64_t bytes, float* total, int64_t threads) {
    constexpr int STREAMS = 4;
    std::atomic<float> all{0};
    in_parts(threads, [&](long thread, long of) {
        long part = bytes / 4 / of / (STREAMS * LANES) * LANES;  // of a stream
        const float* begin = memory + thread * part * STREAMS;
        vf sums[STREAMS] = {};
        for (long i = 0; i < part; i += LANES)
            for (int s = 0; s < STREAMS; s++) sums[s] += load(begin + s * part + i);
        for (int s = 1; s < STREAMS; s++) sums[0] += sums[s];
        all.store(sum(sums[0]));
    });
    *total = all;
}

// Each thread does repeats * TILE_ROWS * TILE_COLUMNS multiply-adds on elements in registers.
EXPORT void multiply_add(int64_t repeats, float* total, int64_t threads) {
    std::atomic<float> all{0};
    in_parts(threads, [&](long, long) {
        vf acc[TILE_ROWS * TILE_VECTORS];
        for (int a = 0; a < TILE_ROWS * TILE_VECTORS; a++) acc[a] = set1(*total + (float)a);
        vf one = set1(*total + 1.0f), half = set1(0.5f);
        for (int64_t i = 0; i < repeats; i++) {
#pragma GCC unroll 32
            for (int a = 0; a < TILE_ROWS * TILE_VECTORS; a++) acc[a] = fma(acc[a], half, one);
        }
        for (vf v : acc) all.store(sum(v));
    });
    *total = all;
}

#if defined(QUIRE_AVX512)
#define PAIRS "vdpbf16ps %2, %1, %0"
#define BYTES "vpdpbusd %2, %1, %0"
#define REGISTER "v"
#elif defined(QUIRE_AVX2)
#define BYTES "%{vex%} vpdpbusd %2, %1, %0"
#define REGISTER "x"
#endif

// Each thread adds repeats * TILE_ROWS * TILE_VECTORS results of an instruction on registers.
#define REPEAT(INSTRUCTION)                                                                \
    in_parts(threads, [&](long, long) {                                                    \
        vi acc[TILE_ROWS * TILE_VECTORS] = {}, one = {}, other = {};                       \
        for (int64_t i = 0; i < repeats; i++) {                                            \
            _Pragma("GCC unroll 32") for (int a = 0; a < TILE_ROWS * TILE_VECTORS; a++)    \
                asm volatile(INSTRUCTION : "+" REGISTER(acc[a]) : REGISTER(one), REGISTER(other)); \
        }                                                                                  \
    })

// Products of pairs of bfloat16, only for processors with avx512_bf16; other builds do nothing.
EXPORT void multiply_pairs(int64_t repeats, int64_t threads) {
#if defined(PAIRS)
    REPEAT(PAIRS);
#else
    (void)repeats, (void)threads;
#endif
}

// Products of four bytes, only for processors with VNNI; other builds do nothing.
EXPORT void multiply_bytes(int64_t repeats, int64_t threads) {
#if defined(BYTES)
    REPEAT(BYTES);
#else
    (void)repeats, (void)threads;
#endif
}

// Number of elements that one repetition of `multiply_add` multiplies.
EXPORT void elements_per_repeat(int64_t* count) { *count = TILE_ROWS * TILE_COLUMNS; }
