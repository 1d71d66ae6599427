// AMX instructions in C++: the operations of Intel's manual, on registers of each thread.
//
// A thread that uses a register without having configured them ends the process, as a processor
// would. Numbers below float32's normal range count as zero, as they do there.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cmath>
#include <cstring>

#define QUIRE_AMX 1
#define QUIRE_EMULATED_AMX 1

namespace matrices {

constexpr int REGISTERS = 8, ROWS = 16, COLUMNS = 16, ROW_BYTES = 64;

struct Register {
    uint8_t rows[ROWS][ROW_BYTES];
};

struct Registers {
    bool is_configured = false;
    Register all[REGISTERS];

    Register& at(int index) {
        if (!is_configured) std::abort();
        return all[index];
    }
};
inline thread_local Registers registers;

inline void begin() {
    if (registers.is_configured) std::abort();  // allowed, but nobody should
    registers.is_configured = true;
    std::memset(registers.all, 0, sizeof registers.all);
}
inline void end() { registers.is_configured = false; }

template <int REGISTER>
void clear() {
    std::memset(&registers.at(REGISTER), 0, sizeof(Register));
}
template <int REGISTER>
void load(const void* from, long stride) {
    Register& to = registers.at(REGISTER);
    for (int r = 0; r < ROWS; r++)
        std::memcpy(to.rows[r], (const uint8_t*)from + r * stride, ROW_BYTES);
}
template <int REGISTER>
void store(void* to, long stride) {
    const Register& from = registers.at(REGISTER);
    for (int r = 0; r < ROWS; r++)
        std::memcpy((uint8_t*)to + r * stride, from.rows[r], ROW_BYTES);
}

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float number(uint16_t bf16) {
    const uint32_t word = (uint32_t)bf16 << 16;
    float x;
    std::memcpy(&x, &word, sizeof x);
    return flushed(x);
}

template <class Element>
Element element(const uint8_t* row, int index) {
    Element x;
    std::memcpy(&x, row + index * sizeof x, sizeof x);
    return x;
}

// TDPBF16PS: sums of even and of odd inputs are added at the end.
template <int SUMS, int X, int W>
void add_pairs() {
    Register &sums = registers.at(SUMS), &x = registers.at(X), &w = registers.at(W);
    for (int m = 0; m < ROWS; m++) {
        float sum[COLUMNS][2] = {};
        for (int k = 0; k < ROWS; k++)
            for (int n = 0; n < COLUMNS; n++)
                for (int j = 0; j < 2; j++) {
                    const float a = number(element<uint16_t>(x.rows[m], 2 * k + j));
                    const float b = number(element<uint16_t>(w.rows[k], 2 * n + j));
                    sum[n][j] = flushed(std::fma(a, b, sum[n][j]));
                }
        for (int n = 0; n < COLUMNS; n++) {
            const float before = flushed(element<float>(sums.rows[m], n));
            const float total = flushed(before + flushed(sum[n][0] + sum[n][1]));
            std::memcpy(sums.rows[m] + n * 4, &total, 4);
        }
    }
}

// TDPBSUD: signed bytes of the first factor, unsigned ones of the second.
template <int SUMS, int X, int W>
void add_bytes() {
    Register &sums = registers.at(SUMS), &x = registers.at(X), &w = registers.at(W);
    for (int m = 0; m < ROWS; m++)
        for (int k = 0; k < ROWS; k++)
            for (int n = 0; n < COLUMNS; n++) {
                int32_t total = element<int32_t>(sums.rows[m], n);
                for (int j = 0; j < 4; j++)
                    total += (int8_t)x.rows[m][4 * k + j] * (int)w.rows[k][4 * n + j];
                std::memcpy(sums.rows[m] + n * 4, &total, 4);
            }
}

inline int request() { return 0; }

}  // namespace matrices
