// Memory of many megabytes is read faster through large pages: fewer addresses are looked up.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

// Asks the system for large pages; before the memory is written, and as far as it is aligned. It is
// advice: where it is not followed nothing is lost.
inline void ask_for_large_pages(uint8_t* memory, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    constexpr uintptr_t LARGE = 2 << 20;
    uintptr_t begin = ((uintptr_t)memory + LARGE - 1) / LARGE * LARGE;
    uintptr_t end = ((uintptr_t)memory + (uintptr_t)bytes) / LARGE * LARGE;
    if (begin < end) (void)madvise((void*)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}
