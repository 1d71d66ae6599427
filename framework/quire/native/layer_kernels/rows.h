// Rows of float32 are shared out among threads, and their last numbers go through a padded vector.
#pragma once
#include <cstring>

#include "threads.h"
#include "vec.h"

namespace {

// Fewer than `per_thread` of all numbers take less time than waking a thread for them.
template <class Row>
INLINE void for_each_row(long rows, long numbers, long per_thread, int threads, Row compute) {
    long useful = numbers / per_thread;
    if (useful < threads) threads = (int)useful;
    share_evenly(rows, threads < 1 ? 1 : threads, compute);
}

// The first `count` numbers, and zeros behind them.
INLINE vf load_part(const float* p, long count) {
    float padded[LANES] = {};
    std::memcpy(padded, p, count * sizeof(float));
    return load(padded);
}
INLINE void store_part(float* p, vf v, long count) {
    float padded[LANES];
    store(padded, v);
    std::memcpy(p, padded, count * sizeof(float));
}

}  // namespace
