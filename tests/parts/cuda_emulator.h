// Just enough of CUDA C++ to run a kernel on the CPU: the threads of a block are fibers.
//
// Blocks run one after the other. A thread runs until it waits: for its warp in a shuffle, for its
// block at a barrier. A block whose threads can never all arrive, because some have left or took
// another branch, is an error, as it would be on a GPU.

#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define QUIRE_EMULATED
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after the other
#define __align__(n) alignas(n)

struct dim3_ { unsigned x, y, z; };
struct uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline unsigned __float_as_uint(float x) { unsigned u; std::memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned u) { float x; std::memcpy(&x, &u, 4); return x; }
template <typename T> inline T __ldg(const T *at) {
    if ((uintptr_t)at % sizeof(T)) __builtin_trap();  // a GPU faults on vectors that lie askew
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
}

inline float float_of_half(unsigned short bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float size;
    if (exponent == 31) size = mantissa ? NAN : INFINITY;
    else if (exponent == 0) size = std::ldexp((float)mantissa, -24);
    else size = std::ldexp((float)(mantissa + 1024), exponent - 25);
    return bits & 0x8000 ? -size : size;
}

inline void floats_of_halves(unsigned pair, float *out) {
    out[0] = float_of_half(pair & 0xFFFF);
    out[1] = float_of_half(pair >> 16);
}

inline unsigned short half_of_float(float x) {
    const unsigned short sign = std::signbit(x) ? 0x8000 : 0;
    const float size = std::fabs(x);
    if (x != x) return 0x7FFF;
    if (size >= 65520.0f) return sign | 0x7C00;
    if (size < 0x1p-14f) return sign | (unsigned short)std::nearbyint(std::ldexp(size, 24));
    const unsigned bits = __float_as_uint(size);
    return sign | (unsigned short)((bits + 0xFFF + (bits >> 13 & 1) - (112u << 23)) >> 13);
}

namespace emulator {

constexpr int MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 1 << 16;
enum class Wait { nothing, warp, block, left };

struct Fiber {
    jmp_buf place;  // where it waits; `setcontext` would ask the kernel at every switch
    bool is_begun;
    Wait wait;
    unsigned parity;  // of its shuffles
};

inline std::vector<Fiber> fibers(MAX_THREADS);
inline std::vector<char> stacks(MAX_THREADS *STACK_BYTES);
inline jmp_buf scheduler;
inline int current, num_threads;
inline float exchange[2][MAX_THREADS];

inline dim3_ thread_index, block_index;

inline void wait(Wait what) {
    fibers[current].wait = what;
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}

// Let the threads of one warp or of the block go on, if all of them wait for the same.
inline bool release(int first, int last, Wait what) {
    for (int i = first; i < last; ++i) {
        if (fibers[i].wait != what) return false;
    }
    for (int i = first; i < last; ++i) fibers[i].wait = Wait::nothing;
    return true;
}

template <typename Body> void enter(Body *body) {
    (*body)();
    wait(Wait::left);
}

// Let a thread run until it waits.
template <typename Body> void resume(int thread, Body *body) {
    Fiber &fiber = fibers[thread];
    current = thread;
    thread_index = {(unsigned)thread, 0, 0};
    if (_setjmp(scheduler)) return;
    if (fiber.is_begun) _longjmp(fiber.place, 1);
    fiber.is_begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks.data() + thread * STACK_BYTES;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, (void (*)())(void (*)(Body *))enter<Body>, 1, body);
    setcontext(&context);
}

// Returns whether all threads of the block came to their end.
template <typename Body> bool run_block(Body body) {
    for (int i = 0; i < num_threads; ++i) {
        fibers[i].is_begun = false;
        fibers[i].wait = Wait::nothing;
        fibers[i].parity = 0;
    }
    while (true) {
        bool has_moved = false, is_over = true;
        for (int first = 0; first < num_threads; first += 32) {
            // A warp goes as far as it can before the next one moves: who reads or writes without
            // having waited for the others is then seen.
            do {
                for (int i = first; i < first + 32; ++i) {
                    if (fibers[i].wait != Wait::nothing) continue;
                    resume(i, &body);
                    has_moved = true;
                }
            } while (release(first, first + 32, Wait::warp));
            for (int i = first; i < first + 32; ++i) is_over &= fibers[i].wait == Wait::left;
        }
        if (is_over) return true;
        has_moved |= release(0, num_threads, Wait::block);
        if (!has_moved) return false;
    }
}

// Returns 0, or 1 if threads of a block waited for each other for ever.
template <typename Body> int run_grid(int x, int y, int threads, Body body) {
    num_threads = threads;
    for (int j = 0; j < y; ++j) {
        for (int i = 0; i < x; ++i) {
            block_index = {(unsigned)i, (unsigned)j, 0};
            if (!run_block(body)) return 1;
        }
    }
    return 0;
}

inline float shuffle(float value, int source_lane) {
    Fiber &fiber = fibers[current];
    float *place = exchange[fiber.parity];
    fiber.parity ^= 1;  // the next shuffle must not write where a slower thread still reads
    place[current] = value;
    const int source = current / 32 * 32 + source_lane;
    wait(Wait::warp);
    return place[source];
}

}  // namespace emulator

#define threadIdx emulator::thread_index
#define blockIdx emulator::block_index

inline void __syncwarp() { emulator::wait(emulator::Wait::warp); }
inline void __syncthreads() { emulator::wait(emulator::Wait::block); }

template <typename T> inline T __shfl_sync(unsigned, T value, int lane) {
    static_assert(sizeof(T) == 4, "as wide as a register");
    float bits;
    std::memcpy(&bits, &value, 4);
    bits = emulator::shuffle(bits, lane & 31);
    std::memcpy(&value, &bits, 4);
    return value;
}

template <typename T> inline T __shfl_xor_sync(unsigned mask, T value, int bits) {
    return __shfl_sync(mask, value, (emulator::current % 32) ^ bits);
}
