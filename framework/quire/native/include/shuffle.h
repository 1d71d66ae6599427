// Shuffles of lanes between vectors: transpose of a square block, and sums of many vectors.
#pragma once

#include <utility>

#include "vec.h"

typedef std::make_integer_sequence<int, LANES> AllLanes;

// The two results of one exchange of a and b: lanes of a whose index has the bit W are swapped with
// lanes of b whose index has not. `first_of` keeps a's lanes without the bit, `second_of` keeps b's
// lanes with the bit.
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

// Transposes the square block whose rows are the vectors: v[i][j] and v[j][i] are swapped.
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

// Returns a vector whose lane i is the sum of v[i]'s lanes; v is overwritten.
template <int W = LANES / 2>
INLINE vf sums(vf (&v)[LANES]) {
    for (int i = 0; i < W; i++)
        v[i] = first_of<W>(v[i], v[i + W], AllLanes()) + second_of<W>(v[i], v[i + W], AllLanes());
    if constexpr (W > 1) return sums<W / 2>(v);
    return v[0];
}

// Returns a vector whose lane i is the largest of v[i]'s lanes; v is overwritten.
template <int W = LANES / 2>
INLINE vf largest_of_each(vf (&v)[LANES]) {
    for (int i = 0; i < W; i++)
        v[i] = max(first_of<W>(v[i], v[i + W], AllLanes()),
                   second_of<W>(v[i], v[i + W], AllLanes()));
    if constexpr (W > 1) return largest_of_each<W / 2>(v);
    return v[0];
}

// Returns v with the lanes i and i ^ W swapped.
template <int W, int... J>
INLINE vf exchanged(vf v, std::integer_sequence<int, J...>) {
#if defined(__clang__)
    return __builtin_shufflevector(v, v, (J ^ W)...);
#else
    return __builtin_shuffle(v, vi{(J ^ W)...});
#endif
}

// The same results as `max_lane` and `sum` of vec.h, in the same order, without memory accesses.
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
