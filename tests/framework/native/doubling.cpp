// Doubles numbers, on several threads.
#include <cstdint>

#include "export.h"
#include "threads.h"

EXPORT void twice(float* numbers, int64_t size, int64_t threads) {
    share_evenly(size, threads, [&](long i) { numbers[i] *= 2; });
}
