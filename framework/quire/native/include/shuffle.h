// Lanes of several vectors change places: a square of numbers is turned, or many vectors summed.
#pragma once

#include <utility>

#include "vec.h"

typedef std::make_integer_sequence<int, LANES> AllLanes;

// The two halves of one exchange: lanes whose index has the bit W change places with those of the
// other vector that have not. `first` keeps a's lanes without the bit, `second` b's lanes with it.
template <int W, int... J>
INLINE vf first_of(vf a, vf b, std::integer_sequence<int, J...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, ((J & W) ? LANES + (J ^ W) : J)...);
#else
    return __builtin_shuffle(a, b, vi{((J & W) ? LANES + (J ^ W) : J)...});
#endif
}
template <int W, int... J>
INLINE vf second_of(vf a, vf b, std::integer_sequence<int, J...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, ((J & W) ? LANES + J : (J ^ W))...);
#else
    return __builtin_shuffle(a, b, vi{((J & W) ? LANES + J : (J ^ W))...});
#endif
}

// Turns the square whose rows are the vectors: v[i][j] and v[j][i] change places.
template <int W = 1>
INLINE void transpose(vf (&v)[LANES]) {
    for (int i = 0; i < LANES; i++)
        if (!(i & W)) {
            vf a = v[i], b = v[i | W];
            v[i] = first_of<W>(a, b, AllLanes());
            v[i | W] = second_of<W>(a, b, AllLanes());
        }
    if constexpr (W * 2 < LANES) transpose<W * 2>(v);
}

// Lane i of what is returned is the sum of v[i]'s lanes; v is written over.
template <int W = LANES / 2>
INLINE vf sums(vf (&v)[LANES]) {
    for (int i = 0; i < W; i++)
        v[i] = first_of<W>(v[i], v[i + W], AllLanes()) + second_of<W>(v[i], v[i + W], AllLanes());
    if constexpr (W > 1) return sums<W / 2>(v);
    return v[0];
}

// The vector whose lanes with the bit W, and those without, have changed places.
template <int W, int... J>
INLINE vf exchanged(vf v, std::integer_sequence<int, J...>) {
#if defined(__clang__)
    return __builtin_shufflevector(v, v, (J ^ W)...);
#else
    return __builtin_shuffle(v, vi{(J ^ W)...});
#endif
}

// `max_lane` and `sum` of vec.h, in the same order, without a detour through memory.
template <int W = LANES / 2>
INLINE float largest_lane(vf v) {
    v = max(v, exchanged<W>(v, AllLanes()));
    if constexpr (W > 1) return largest_lane<W / 2>(v);
    return v[0];
}
template <int W = LANES / 2>
INLINE float sum_of_lanes(vf v) {
    v = v + exchanged<W>(v, AllLanes());
    if constexpr (W > 1) return sum_of_lanes<W / 2>(v);
    return v[0];
}
