// The threads that compute: one pool for all libraries of the process.
//
// Work comes in parts. Whoever is awake takes the next one, the caller first of all, so work never
// waits for a thread that sleeps or that the system has not let run: the caller then does it all. A
// thread that has run out of work looks for more for some microseconds, as the next layer is about
// to come, and then sleeps. One call is served at a time; one that comes meanwhile, from another
// thread or from inside a part, does its parts itself.
//
//     state = call : 32 | parts : 16 | taken : 16
//
// A part is taken by adding one to the state as a whole, so it is always one of the call that is in
// there. The call cannot end before that part is done, so what it left in `work` and `context`
// stays.
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

constexpr auto AWAKE = std::chrono::microseconds(100);  // without work
constexpr int GLANCES = 32;  // between two looks at the clock; some microseconds
constexpr int PATIENT_GLANCES = 1 << 12;  // of the caller, before it lets others use its core
constexpr long CALLS_UNTIL_ASKED_AGAIN = 1 << 14;  // some seconds of work
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

    // Does one part, if there is one that nobody has taken.
    bool take() {
        uint64_t seen = state.load(std::memory_order_seq_cst);
        do {
            if (!has_part(seen)) return false;
        } while (!state.compare_exchange_weak(seen, seen + 1, std::memory_order_seq_cst));
        work(context, (long)(seen & 0xffff), (long)(seen >> 16 & 0xffff));
        left.fetch_sub(1, std::memory_order_release);
        return true;
    }

    // The state says already that there is work: a thread that counts itself among the sleepers
    // later than this looks at them has seen that.
    void wake(long wanted) {
        if (refused)
            refused--;
        else
            while (num_threads < wanted && start()) {
            }
        if (!asleep.load(std::memory_order_seq_cst)) return;
        { std::lock_guard<std::mutex> lock(sleep); }  // who is about to sleep does, or has seen it
        wanted == 1 ? awakened.notify_one() : awakened.notify_all();
    }

    // Whether there is one more. Where the system grants none, or no memory, those that are do it
    // all for some time.
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

    std::atomic<bool> is_busy{false};  // serves a call; who has set it owns what follows
    Work work = nullptr;
    void* context = nullptr;
    long num_threads = 0;  // beside the callers'
    long refused = 0;  // calls before the system is asked for threads again
    alignas(64) std::atomic<uint64_t> state{0};
    alignas(64) std::atomic<long> left{0};  // parts that are not done
    alignas(64) std::atomic<int> asleep{0};
    std::mutex sleep;
    std::condition_variable awakened;
};

// Nobody ends the threads, so the pool is never destroyed either: they may look for work until the
// process is gone. A forked process has none of them, and what they held stays locked there: it
// begins with a new pool.
alignas(Pool) unsigned char memory[sizeof(Pool)];

Pool* begin() { return new (memory) Pool; }

Pool* const only = (pthread_atfork(nullptr, nullptr, [] { begin(); }), begin());

}  // namespace

// Calls work(context, part, parts) for each part, on any thread, and returns when all are done.
EXPORT void run_parts(Work work, void* context, long parts) noexcept {
    only->run(work, context, parts);
}
