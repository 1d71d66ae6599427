// Thread pool for parallel kernels: one pool for all libraries of the process.
//
// Work is divided into parts. Any thread that is awake takes the next part, the caller included, so
// work never waits for a thread that sleeps or is not scheduled: in that case the caller runs all
// parts. A thread without work spins for some microseconds, because the next layer's call follows
// soon, and then sleeps. The pool serves one call at a time. A concurrent call, from another thread
// or from inside a part, runs its parts on its own thread.
//
//     state = call : 32 | parts : 16 | taken : 16
//
// A part is taken by adding one to the state as a whole, so it always belongs to the call in the
// state. That call cannot end before the part is done, so its `work` and `context` stay valid.
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <thread>

#include "export.h"

namespace {

using Work = void (*)(void* context, long part, long parts) noexcept;
using Clock = std::chrono::steady_clock;

constexpr auto AWAKE = std::chrono::microseconds(100);  // spinning time without work
constexpr int GLANCES = 32;  // spins between two reads of the clock; some microseconds
constexpr int PATIENT_GLANCES = 1 << 12;  // spins of the caller before it yields its core
constexpr long CALLS_UNTIL_ASKED_AGAIN = 1 << 14;  // before new threads are tried; some seconds
constexpr long MAX_PARTS = 1 << 15;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Pool {
public:
    void run(Work given, void* given_context, long parts) {
        bool is_alone = parts < 2 || parts > MAX_PARTS;
        if (is_alone || is_busy.exchange(true, std::memory_order_acquire)) {
            for (long part = 0; part < parts; part++) given(given_context, part, parts);
            return;
        }
        work = given;
        context = given_context;
        left.store(parts, std::memory_order_relaxed);
        uint64_t call = (state.load(std::memory_order_relaxed) >> 32) + 1;
        state.store(call << 32 | (uint64_t)parts << 16, std::memory_order_seq_cst);
        wake(parts - 1);
        while (take()) {
        }
        for (int glance = 0; left.load(std::memory_order_acquire);)
            glance < PATIENT_GLANCES ? (glance++, pause()) : std::this_thread::yield();
        is_busy.store(false, std::memory_order_release);
    }

private:
    static bool has_part(uint64_t seen) { return (seen & 0xffff) < (seen >> 16 & 0xffff); }

    // Runs one part, if there is one that no thread has taken.
    bool take() {
        uint64_t seen = state.load(std::memory_order_seq_cst);
        do {
            if (!has_part(seen)) return false;
        } while (!state.compare_exchange_weak(seen, seen + 1, std::memory_order_seq_cst));
        work(context, (long)(seen & 0xffff), (long)(seen >> 16 & 0xffff));
        left.fetch_sub(1, std::memory_order_release);
        return true;
    }

    // The state has the new work already: a thread that increments `asleep` after this function has
    // read it sees that work before it sleeps.
    void wake(long wanted) {
        if (refused)
            refused--;
        else
            while (num_threads < wanted && start()) {
            }
        if (!asleep.load(std::memory_order_seq_cst)) return;
        { std::lock_guard<std::mutex> lock(sleep); }  // threads going to sleep wait now or saw it
        wanted == 1 ? awakened.notify_one() : awakened.notify_all();
    }

    // Starts one more thread, and returns whether that succeeded. If the system refuses a thread or
    // its memory, the existing threads do all the work for some time.
    bool start() {
        try {
            std::thread([this] { serve(); }).detach();
            num_threads++;
            return true;
        } catch (const std::exception&) {
            refused = CALLS_UNTIL_ASKED_AGAIN;
            return false;
        }
    }

    void serve() {
        for (;;) {
            auto since = Clock::now();
            do {
                for (int glance = 0; glance < GLANCES; glance++)
                    if (take())
                        since = Clock::now();
                    else
                        pause();
            } while (Clock::now() - since < AWAKE);
            std::unique_lock<std::mutex> lock(sleep);
            asleep.fetch_add(1, std::memory_order_seq_cst);
            awakened.wait(lock, [this] { return has_part(state.load(std::memory_order_seq_cst)); });
            asleep.fetch_sub(1, std::memory_order_relaxed);
        }
    }

    std::atomic<bool> is_busy{false};  // serves a call; the thread that set it owns the following
    Work work = nullptr;
    void* context = nullptr;
    long num_threads = 0;  // without the callers' threads
    long refused = 0;  // number of calls until new threads are tried again
    alignas(64) std::atomic<uint64_t> state{0};
    alignas(64) std::atomic<long> left{0};  // parts that are not done
    alignas(64) std::atomic<int> asleep{0};
    std::mutex sleep;
    std::condition_variable awakened;
};

// The threads run until the process ends, so the pool is never destroyed. A forked process has none
// of the threads, and locks that they held stay locked there, so it starts with a new pool.
alignas(Pool) unsigned char memory[sizeof(Pool)];

Pool* begin() { return new (memory) Pool; }

Pool* const only = (pthread_atfork(nullptr, nullptr, [] { begin(); }), begin());

}  // namespace

// Calls work(context, part, parts) for each part, on any thread; returns when all parts are done.
EXPORT void run_parts(Work work, void* context, long parts) noexcept {
    only->run(work, context, parts);
}
