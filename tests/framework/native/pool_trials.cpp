// What the pool promises, tried from inside: each part is done once, and all are when a call ends.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "export.h"
#include "threads.h"

namespace {

// Numbers of a thread's own that a sanitizer or a wrong total would show to be shared.
struct Marks {
    std::vector<long> parts, of;
    explicit Marks(long count) : parts(count), of(count) {}

    void mark(long part, long parts_of) {
        parts[part]++;
        of[part] = parts_of;
    }
    long wrong(long wanted) const {
        long count = 0;
        for (size_t i = 0; i < parts.size(); i++)
            count += parts[i] != wanted || of[i] != (long)parts.size();
        return count;
    }
};

}  // namespace

// wrong: how many parts were not done just once, over all rounds. Every `rest`-th round comes when
// the threads sleep.
EXPORT void many_rounds(int64_t rounds, int64_t parts, int64_t rest, int64_t* wrong) {
    *wrong = 0;
    for (int64_t round = 0; round < rounds; round++) {
        if (rest && round % rest == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        Marks marks(parts);
        in_parts(parts, [&](long part, long of) { marks.mark(part, of); });
        *wrong += marks.wrong(1);
    }
}

// Each part does a call of its own.
EXPORT void nested(int64_t rounds, int64_t outer, int64_t inner, int64_t* wrong) {
    *wrong = 0;
    for (int64_t round = 0; round < rounds; round++) {
        std::vector<Marks> marks(outer, Marks(inner));
        in_parts(outer, [&](long place, long) {
            in_parts(inner, [&](long part, long of) { marks[place].mark(part, of); });
        });
        for (const Marks& one : marks) *wrong += one.wrong(1);
    }
}

// done[i]: how often i was worked on.
EXPORT void shares(int64_t count, int64_t threads, int32_t* done) {
    share_evenly(count, threads, [&](long i) { done[i]++; });
}

// met: whether two threads were in two parts at the same time, before a second had passed.
EXPORT void meeting(int32_t* met) {
    std::atomic<int> inside{0};
    std::atomic<bool> have_met{false};
    auto begin = std::chrono::steady_clock::now();
    in_parts(2, [&](long, long) {
        if (++inside == 2) have_met = true;
        while (!have_met && std::chrono::steady_clock::now() - begin < std::chrono::seconds(1))
            std::this_thread::yield();
    });
    *met = have_met;
}
