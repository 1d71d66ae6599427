// Functions that write down their arguments, for tests of replays.
#include <cstdint>
#include <cstring>

#include "export.h"

namespace {

// An overload, which the exported function of this name must not be confused with.
int fail_below(int a, int b) { return a < b; }

}  // namespace

// Appends the bytes of all other arguments to `notes`, whose first 8 bytes are its size.
EXPORT void note(
    unsigned char* notes, int32_t a, float b, int64_t c, double d, const void* e, float f, int32_t g,
    int64_t h, int64_t i, float j
) noexcept {
    int64_t size;
    std::memcpy(&size, notes, sizeof size);
    auto add = [&](auto value) {
        std::memcpy(notes + size, &value, sizeof value);
        size += sizeof value;
    };
    add(a), add(b), add(c), add(d), add(e), add(f), add(g), add(h), add(i), add(j);
    std::memcpy(notes, &size, sizeof size);
}

// Adds one to a number, and returns 7 if that is below the limit.
EXPORT int fail_below(int64_t* number, int64_t limit) {
    return 7 * fail_below((int)++*number, (int)limit);
}
