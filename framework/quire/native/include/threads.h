// Parallel work, divided into parts, on the thread pool that all libraries of the process share.
#pragma once

#include "export.h"

typedef void (*PartOfWork)(void* work, long part, long parts) noexcept;
typedef void (*RunParts)(PartOfWork part_of_work, void* work, long parts);

static RunParts run_parts_in_pool = nullptr;

// Called once, when the library is loaded.
EXPORT void use_pool(RunParts run) { run_parts_in_pool = run; }

// Calls work(part, parts) for each part, on any threads, and returns when all parts are done. The
// number of parts is the number of threads to use; the pool grows to that number. Parts must not
// wait for each other, because one thread may run them all. An exception in one ends the process.
template <class Work>
static inline void in_parts(long parts, const Work& work) {
    PartOfWork one = [](void* given, long part, long of) noexcept {
        (*(const Work*)given)(part, of);
    };
    if (run_parts_in_pool) return run_parts_in_pool(one, (void*)&work, parts);
    for (long part = 0; part < parts; part++) one((void*)&work, part, parts);
}

// Calls work(i) for each i below `count`; adjacent ones run on the same thread.
template <class Work>
static inline void share_evenly(long count, long threads, const Work& work) {
    long most = threads < count ? threads : count;
    in_parts(most < 1 ? 1 : most, [&](long part, long parts) {
        for (long i = count * part / parts; i < count * (part + 1) / parts; i++) work(i);
    });
}
