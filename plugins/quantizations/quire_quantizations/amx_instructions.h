// AMX instructions as functions, in assembly, so that the compiler uses them nowhere else.
//
// QUIRE_AMX is defined for an instruction set that has them. A test defines QUIRE_EMULATED_AMX too,
// and functions of the same names that emulate them.
#pragma once

#include "vec.h"

#if defined(QUIRE_AMX) && !defined(QUIRE_EMULATED_AMX)
#if defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace matrices {

// Shapes of the registers: the first eight have 16 rows of 64 bytes.
struct alignas(64) Shapes {
    uint8_t palette = 1, first_row = 0, unused[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Lets this thread use the registers, which are cleared.
INLINE void begin() {
    static constexpr Shapes shapes;
    asm volatile("ldtilecfg %0" ::"m"(shapes));
}
// Ends that: the system need not save the registers any more when it switches threads.
INLINE void end() { asm volatile("tilerelease"); }

template <int REGISTER>
INLINE void clear() {
    asm volatile("tilezero %%tmm%c0" ::"i"(REGISTER));
}
template <int REGISTER>
INLINE void load(const void* from, long stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(REGISTER) : "memory");
}
template <int REGISTER>
INLINE void store(void* to, long stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(REGISTER) : "memory");
}

// SUMS += ROWS * COLUMNS, of elements with two bfloat16 each.
template <int SUMS, int ROWS, int COLUMNS>
INLINE void add_pairs() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(ROWS), "i"(COLUMNS));
}
// The same for elements with four signed bytes in ROWS, and four unsigned ones in COLUMNS.
template <int SUMS, int ROWS, int COLUMNS>
INLINE void add_bytes() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(ROWS), "i"(COLUMNS));
}

// Asks Linux for the registers, for all threads of the process; returns its error number, or 0.
static inline int request() {
    constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) ? errno : 0;
}

}  // namespace matrices
#else
#undef QUIRE_AMX
#endif
#endif
