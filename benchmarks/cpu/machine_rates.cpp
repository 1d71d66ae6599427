// Peak rates of the processor: bytes read from memory, fused multiply-adds in registers, and
// products of pairs of bfloat16.
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

// Each thread multiplies repeats * TILE_ROWS * TILE_COLUMNS pairs of bfloat16 in registers. Only for
// processors with avx512_bf16; other builds do nothing.
EXPORT void multiply_pairs(int64_t repeats, int64_t threads) {
#if defined(QUIRE_AVX512)
    in_parts(threads, [&](long, long) {
        for (int64_t i = 0; i < repeats; i++) {
#define PAIRS(sum) "vdpbf16ps %%zmm31, %%zmm30, %%zmm" #sum "\n"
            asm volatile(
                PAIRS(0) PAIRS(1) PAIRS(2) PAIRS(3) PAIRS(4) PAIRS(5) PAIRS(6) PAIRS(7)
                PAIRS(8) PAIRS(9) PAIRS(10) PAIRS(11) PAIRS(12) PAIRS(13) PAIRS(14) PAIRS(15)
                PAIRS(16) PAIRS(17) PAIRS(18) PAIRS(19) PAIRS(20) PAIRS(21) PAIRS(22) PAIRS(23)
                :
                :
                : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                  "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18",
                  "xmm19", "xmm20", "xmm21", "xmm22", "xmm23");
#undef PAIRS
        }
    });
    static_assert(TILE_ROWS * TILE_VECTORS == 24, "as many sums as above");
#else
    (void)repeats, (void)threads;
#endif
}

// Number of elements that one repetition of `multiply_add` multiplies.
EXPORT void elements_per_repeat(int64_t* count) { *count = TILE_ROWS * TILE_COLUMNS; }
