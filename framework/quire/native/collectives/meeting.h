// Meetings of a group's ranks in shared memory: each publishes its step, and waits for the others.
//
//     segment = control words (CONTROL_BYTES) | slots of rank 0 | slots of rank 1 | ...
//     word    = epoch : 24 | number : 40
//
// A word of an earlier epoch is smaller than any of this one, so a rank that starts a new epoch waits
// for those that have not, and nothing has to be cleared. A rank that waits spins for a while if it may,
// yielding its core in between, and then sleeps on a futex. A rank that gives up says so in `aborted`; all others then give up as well.
#pragma once

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "export.h"

namespace {

constexpr long MAX_RANKS = 64;
constexpr long CONTROL_BYTES = 16384;
constexpr int NUMBER_BITS = 40;
constexpr int GLANCES = 64;  // spins between two reads of the clock; one or two microseconds
constexpr int64_t LONGEST_SLEEP_NS = 100000000;  // in case that a rank died before it woke the others

enum Status : int { OK = 0, TIMED_OUT = 1, ABORTED = 2, DIFFERENT = 3, CLOSED = 4 };

static_assert(sizeof(std::atomic<uint64_t>) == 8 && std::atomic<uint64_t>::is_always_lock_free);

// What one rank publishes; only this rank writes it.
struct alignas(128) Line {
    std::atomic<uint64_t> arrived;  // word: meetings that it has come to, or messages
    std::atomic<uint64_t> called;  // word: collectives that it has called
    std::atomic<uint64_t> kind[2];  // of its collective, by buffer
    std::atomic<uint64_t> bytes[2];
};

// The first rank that gives up in an epoch writes `cause` to `count`, then `aborted`.
struct Control {
    uint64_t identity[16];  // written when the segment is created
    alignas(128) std::atomic<uint64_t> claimed;  // epoch in which a rank has given up
    std::atomic<uint64_t> aborted;  // the same, once the reason can be read
    std::atomic<int64_t> cause, rank, count;
    std::atomic<uint64_t> behind;  // bit of each rank that was behind
    alignas(128) std::atomic<uint32_t> bell;  // futex
    std::atomic<uint32_t> asleep;
    Line lines[MAX_RANKS];
};
static_assert(sizeof(Control) <= CONTROL_BYTES);

// One rank's own state; Python allocates it, and fills in the first fields.
struct Member {
    unsigned char* base;
    int64_t rank, size, slot_bytes, two_shot_bytes, timeout_ns, spin_ns, epoch;
    int64_t steps, pieces, calls;  // of this epoch
    std::atomic<int32_t> is_busy, is_closed;
    int64_t failed_epoch;  // the last epoch in which a call failed; of that failure:
    int64_t cause, giver_up, count;
    uint64_t behind;
    int64_t kinds[MAX_RANKS], bytes[MAX_RANKS];  // that a rank called; only if they differ
    Control& control() const { return *(Control*)base; }
    Line& line(long r) const { return control().lines[r]; }
    uint64_t word(int64_t number) const { return (uint64_t)epoch << NUMBER_BITS | (uint64_t)number; }
};

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

inline void futex_wait(std::atomic<uint32_t>& futex, uint32_t expected, int64_t longest_ns) {
    if (longest_ns > LONGEST_SLEEP_NS) longest_ns = LONGEST_SLEEP_NS;
    if (longest_ns <= 0) return;
    timespec t{0, (long)longest_ns};
    syscall(SYS_futex, (uint32_t*)&futex, FUTEX_WAIT, expected, &t, nullptr, 0);
}

// Wakes all ranks that sleep.
inline void ring(Control& control) {
    control.bell.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, (uint32_t*)&control.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline bool is_aborted(const Member& m) {
    return m.control().aborted.load(std::memory_order_acquire) >= (uint64_t)m.epoch;
}

// Bits of the ranks that have called fewer collectives than the one that has called most.
inline uint64_t ranks_behind(const Member& m) {
    uint64_t most = 0, behind = 0;
    for (long r = 0; r < m.size; r++) {
        uint64_t called = m.line(r).called.load(std::memory_order_relaxed);
        if (called > most) most = called;
    }
    for (long r = 0; r < m.size; r++)
        if (m.line(r).called.load(std::memory_order_relaxed) < most) behind |= (uint64_t)1 << r;
    return behind;
}

// Makes every rank of this epoch give up. The first reason counts.
inline void give_up(Member& m, int64_t cause) {
    Control& control = m.control();
    uint64_t epoch = (uint64_t)m.epoch, seen = control.claimed.load(std::memory_order_seq_cst);
    while (seen < epoch)
        if (control.claimed.compare_exchange_weak(seen, epoch, std::memory_order_seq_cst)) {
            control.cause.store(cause, std::memory_order_relaxed);
            control.rank.store(m.rank, std::memory_order_relaxed);
            control.count.store(m.calls, std::memory_order_relaxed);
            control.behind.store(ranks_behind(m), std::memory_order_relaxed);
            control.aborted.store(epoch, std::memory_order_seq_cst);
            break;
        }
    for (int glance = 0; glance < 1 << 16 && !is_aborted(m); glance++) pause();  // another's reason
    ring(control);
}

// Notes why the group gave up, for the error of this call and of all that follow in this epoch.
inline int note_abort(Member& m) {
    const Control& control = m.control();
    m.failed_epoch = m.epoch;
    m.cause = control.cause.load(std::memory_order_relaxed);
    m.giver_up = control.rank.load(std::memory_order_relaxed);
    m.count = control.count.load(std::memory_order_relaxed);
    m.behind = control.behind.load(std::memory_order_relaxed);
    return (int)m.cause;
}

// Gives up; if the rank that did so first died before it gave its reason, this rank's counts.
inline int fail(Member& m, int64_t cause) {
    give_up(m, cause);
    if (is_aborted(m)) return note_abort(m);
    m.failed_epoch = m.epoch;
    m.cause = cause;
    m.giver_up = m.rank;
    m.count = m.calls;
    m.behind = ranks_behind(m);
    return (int)cause;
}

// One call of this rank: `begin` first; the destructor ends it. `close` waits for its end.
class Call {
public:
    explicit Call(Member& member) : m(member) { m.is_busy.store(1, std::memory_order_seq_cst); }
    ~Call() { m.is_busy.store(0, std::memory_order_seq_cst); }
    Call(const Call&) = delete;

    int begin() {
        if (m.is_closed.load(std::memory_order_seq_cst)) return CLOSED;
        if (m.failed_epoch == m.epoch) return (int)m.cause;
        m.calls++;
        m.line(m.rank).called.store(m.word(m.calls), std::memory_order_relaxed);
        return is_aborted(m) ? note_abort(m) : OK;
    }

    // Waits until ready(): at first awake, then asleep. A call that all have come to succeeds, even if a
    // rank gives up in the meantime.
    template <class Ready>
    int wait(Ready ready) {
        for (int glance = 0; glance < GLANCES; glance++, pause())
            if (ready()) return OK;
        int64_t now = now_ns(), awake_until = now + m.spin_ns;
        if (!deadline) deadline = now + m.timeout_ns;
        for (; now < awake_until; now = now_ns()) {
            sched_yield();  // in case that the other rank is to run on this core
            for (int glance = 0; glance < GLANCES; glance++, pause())
                if (ready()) return OK;
            if (is_aborted(m)) return ready() ? OK : note_abort(m);
        }
        for (;; now = now_ns()) {
            sleep(ready, deadline - now);
            bool is_late = now_ns() >= deadline;
            if (is_aborted(m)) return ready() ? OK : note_abort(m);
            if (ready()) return OK;
            if (is_late) return fail(m, TIMED_OUT);
        }
    }

    Member& m;

private:
    // A rank that publishes sees `asleep`, or this one sees what it has published.
    template <class Ready>
    void sleep(Ready ready, int64_t longest_ns) {
        Control& control = m.control();
        control.asleep.fetch_add(1, std::memory_order_seq_cst);
        uint32_t heard = control.bell.load(std::memory_order_seq_cst);
        if (!ready() && !is_aborted(m)) futex_wait(control.bell, heard, longest_ns);
        control.asleep.fetch_sub(1, std::memory_order_seq_cst);
    }

    int64_t deadline = 0;
};

inline bool has_arrived(const Member& m, long r, uint64_t word) {
    return m.line(r).arrived.load(std::memory_order_seq_cst) >= word;
}

inline bool have_all_arrived(const Member& m, uint64_t word) {
    for (long r = 0; r < m.size; r++)
        if (!has_arrived(m, r, word)) return false;
    return true;
}

// Publishes that this rank has come to the next meeting, and waits for all others. Only the last one
// wakes the others, for they have nothing to do before.
inline int meet(Call& call) {
    Member& m = call.m;
    uint64_t word = m.word(++m.steps);
    m.line(m.rank).arrived.store(word, std::memory_order_seq_cst);
    if (m.control().asleep.load(std::memory_order_seq_cst) && have_all_arrived(m, word))
        ring(m.control());
    long next = 0;
    return call.wait([&] {
        while (next < m.size && has_arrived(m, next, word)) next++;
        return next == m.size;
    });
}

}  // namespace
