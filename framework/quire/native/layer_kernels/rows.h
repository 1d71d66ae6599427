// Division of float32 rows over threads, and padded vectors for the last elements of a row.
#pragma once
#include <cstring>

#include "threads.h"
#include "vec.h"

namespace {

// Uses one thread per `per_thread` of all `elements`: fewer take less time than waking a thread.
template <class Row>
INLINE void for_each_row(long rows, long elements, long per_thread, int threads, Row compute) {
    long useful = elements / per_thread;
    if (useful < threads) threads = (int)useful;
    share_evenly(rows, threads < 1 ? 1 : threads, compute);
}

// The first `count` elements, followed by zeros.
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
