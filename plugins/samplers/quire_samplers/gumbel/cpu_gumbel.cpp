// Gumbel-max sampling: the token with the largest logit plus noise, computed for few tokens only.
//
// The noise is bit-exact with `gumbel_noise.py`. Its bits give an upper bound without a logarithm,
// and most tokens cannot exceed the best one so far even with their bound. Filters are applied
// without a sort of the vocabulary: one pass collects the tokens in a range of logits that is
// estimated from a sample, and a selection among them finds where the kept ones end. If the
// estimate was wrong, all tokens are collected.
//
// Each row is sampled by one thread, independent of the other rows.
#include <atomic>
#include <algorithm>

#include "export.h"
#include "threads.h"
#include "vec.h"

namespace {

typedef uint32_t vu __attribute__((vector_size(LANES * 4)));

constexpr float INF = INFINITY;
constexpr long ELEMENTS_PER_THREAD = 1 << 17;    // least work of a thread: less is faster alone
constexpr long SAMPLED_PER_THREAD = 1 << 14;     // the same with noise or weights
constexpr float MIN_TEMPERATURE = 1e-5f;         // as in `temperature`
constexpr float TINY = 1.1754943508222875e-38f;  // one token is always kept
constexpr long SAMPLE = 256;
constexpr long MANY = 32;                   // from so many sampled tokens on, the range is bounded
constexpr long LEAST_SAMPLED = 4 * SAMPLE;  // smaller vocabularies are collected whole
constexpr long BLOCK = 64 * LANES;          // tokens summed in float32 before float64

// Whether any lane of `a` exceeds that of `b`, or is NaN.
INLINE bool any_exceeds(vf a, vf b) {
#if defined(QUIRE_AVX512)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NLE_UQ) != 0;
#elif defined(QUIRE_AVX2)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_NLE_UQ)) != 0;
#else
    vi at_most = a <= b;
    int32_t all = -1;
    for (int i = 0; i < LANES; i++) all &= at_most[i];
    return all == 0;
#endif
}

INLINE vu lanes_from(uint32_t first) {
    vu out;
    for (int i = 0; i < LANES; i++) out[i] = first + i;
    return out;
}

// The elements from `p` on; -inf, which is never sampled, after the end.
INLINE vf load_until(const float* p, long count) {
    if (count >= LANES) return load(p);
    float padded[LANES];
    for (int i = 0; i < LANES; i++) padded[i] = i < count ? p[i] : -INF;
    return load(padded);
}

// log(x) for positive x, not denormal: Cephes (Moshier), error about one unit in the last place.
INLINE vf log(vf x) {
    vi word = bits(x);
    const vi half = set1i(0x3f3504f3);  // sqrt(1/2): the mantissa is in [sqrt(1/2), sqrt(2))
    vi exponent = (word - half) >> 23;
    vf z = from_bits(word - (exponent << 23)) - set1(1.0f);
    vf e = to_float(exponent), square = z * z;
    vf y = set1(7.0376836292e-2f);
    y = fma(y, z, set1(-1.1514610310e-1f));
    y = fma(y, z, set1(1.1676998740e-1f));
    y = fma(y, z, set1(-1.2420140846e-1f));
    y = fma(y, z, set1(1.4249322787e-1f));
    y = fma(y, z, set1(-1.6668057665e-1f));
    y = fma(y, z, set1(2.0000714765e-1f));
    y = fma(y, z, set1(-2.4999993993e-1f));
    y = fma(y, z, set1(3.3333331174e-1f));
    y = fma(e, set1(-2.12194440e-4f), y * z * square);
    y = fma(square, set1(-0.5f), y);
    return fma(e, set1(0.693359375f), z + y);
}

INLINE uint64_t mix(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

// u in (0, 1] of each token.
struct Hash {
    uint32_t low, high;

    Hash(int64_t seed, int64_t child, int64_t position) {
        uint64_t key = mix((uint64_t)seed + (uint64_t)child * 0xD1B54A32D192ED03u);
        key = mix(key + (uint64_t)position * 0x9E3779B97F4A7C15u);
        low = (uint32_t)key;
        high = (uint32_t)(key >> 32);
    }

    __attribute__((always_inline)) static inline vf unit(vu word) {
        return (__builtin_convertvector(word, vf) + set1(0.5f)) * set1(0x1p-32f);
    }
    __attribute__((always_inline)) inline vf of(vu token_ids) const {
        vu word = token_ids * 0x9E3779B1u + low;
        word = (word ^ (word >> 16)) * 0x7FEB352Du;
        word = (word ^ (word >> 15) ^ high) * 0x846CA68Bu;
        return unit(word ^ (word >> 16));
    }
};

INLINE vf noise(vf u) {
    const vf one = set1(1.0f);
    u = min(u, set1(1.0f - 0x1p-24f));
    vf series = set1(0.25f);
    series = u * series + set1(1.0f / 3.0f);
    series = u * series + set1(0.5f);
    series = u * (u * series + one);
    vf inner = u < set1(0x1p-6f) ? series : -log(one - u);
    return -log(inner);
}

constexpr float MOST_NOISE = 22.9f;  // of u = 2^-33

// Upper bound of the noise: -log(-log(1 - u)) < -log(u), and exponent and mantissa of a float, read
// as one number, are a lower bound of its logarithm to base 2. The last digits cover rounding.
INLINE vf most_noise(vf u) {
    const float log_2 = 0.6931472f;
    return fma(to_float(bits(u)), set1(-log_2 * 0x1p-23f), set1(127.0f * log_2 + 3e-5f));
}

// A token, and its score or logit.
struct Best {
    float score;
    long token;
};

// Search for the token with the largest score.
struct TokenSearch {
    const Hash hash;
    const float divisor;  // the temperature
    const float lowest;   // lowest scaled logit that is kept
    float best = -INF;
    uint32_t token = 0;
    float factor_above, factor_below;  // the larger product of x with these bounds x / divisor

    TokenSearch(Hash hash, float divisor, float lowest)
        : hash(hash), divisor(divisor), lowest(lowest),
          factor_above((1 + 4e-7f) / divisor), factor_below((1 - 4e-7f) / divisor) {}

    Best found() const { return {best, (long)token}; }

    __attribute__((always_inline)) inline void consider(vf x, vu token_ids) {
        vf bound = max(x * set1(factor_above), x * set1(factor_below)), nothing = set1(-INF);
        bound = bound < set1(lowest) ? nothing : bound;
        if (!any_exceeds(bound + set1(MOST_NOISE), set1(best))) return;
        vf u = hash.of(token_ids);
        if (any_exceeds(bound + most_noise(u), set1(best))) score_exactly(x, token_ids, u);
    }

    __attribute__((noinline)) void score_exactly(vf x, vu token_ids, vf u) {
        const vf infinity = set1(INF), nothing = -infinity;
        vf scaled = x / set1(divisor);
        vf score = scaled + noise(u);
        score = scaled < set1(lowest) ? nothing : score;
        score = score == score ? score : infinity;  // a NaN wins, and its row fails
        float scores[LANES];
        store(scores, score);
        for (int i = 0; i < LANES; i++)
            if (scores[i] > best) {
                best = scores[i];
                token = token_ids[i];
            }
    }
};

// The first largest element; the first NaN if there is one.
Best find_likeliest(const float* x, long size) {
    Best found = {-INF, 0};
    long start = -1;
    for (long block = 0; block < size; block += BLOCK) {
        const long end = std::min(size, block + BLOCK);
        vf largest[2] = {set1(-INF), set1(-INF)};
        vi none = {};
        long i = block;
        for (; i + 2 * LANES <= end; i += 2 * LANES) {
            vf a = load(x + i), b = load(x + i + LANES);
            largest[0] = max(largest[0], a);
            largest[1] = max(largest[1], b);
            none |= (a != a) | (b != b);
        }
        for (; i < end; i += LANES) {
            vf a = load_until(x + i, end - i);
            largest[0] = max(largest[0], a);
            none |= a != a;
        }
        if (any_exceeds(to_float(-none), zero())) {
            for (i = block; x[i] == x[i]; i++) {}
            return {x[i], i};
        }
        float value = max_lane(max(largest[0], largest[1]));
        if (value > found.score) {
            found.score = value;
            start = block;
        }
    }
    if (start >= 0) {
        while (x[start] != found.score) start++;
        found.token = start;
    }
    return found;
}

// `first`: id of the token whose logit is x[0].
Best sample_from(TokenSearch search, const float* x, long size, long first) {
    vu token_ids = lanes_from((uint32_t)first);
    search.token = (uint32_t)first;
    for (long i = 0; i < size; i += LANES, token_ids += (uint32_t)LANES)
        search.consider(load_until(x + i, size - i), token_ids);
    return search.found();
}

// Filters of a row.
struct Filters {
    float divisor;
    float top;     // the largest scaled logit
    float floor;   // lowest scaled logit that min-p keeps
    long limit;    // of top-k; the vocabulary size if off
    float top_p;
    bool is_limited(long size) const { return limit < size; }
};

struct Weighted {
    float x;
    float weight;
};

// Scaled logits above `low` and not above `high`.
struct Range {
    float low, high;
    bool is_whole() const { return low == -INF && high == INF; }
};
constexpr Range WHOLE = {-INF, INF};

// Scratch memory of one thread with the collected tokens, in order and for the selection.
struct Collected {
    float* x;
    int32_t* token_ids;
    Weighted* ranked;
    long count;
    double weight;        // of the collected tokens
    double weight_above;  // of the tokens above the range
    double total;         // of all tokens; only summed if top-p refers to it
};

// Range in which the kept tokens end, estimated from a sample. It has no upper bound unless many
// tokens are kept.
Range suggested(const float* x, long size, const Filters& filters) {
    if (size < LEAST_SAMPLED) return WHOLE;
    float sample[SAMPLE];
    const long stride = size / SAMPLE;
    for (long i = 0; i < SAMPLE; i++) {
        float v = x[i * stride] / filters.divisor;
        sample[i] = v < filters.floor ? -INF : v;
    }
    std::sort(sample, sample + SAMPLE);
    if (filters.is_limited(size)) {
        double rank = (double)filters.limit * SAMPLE / size;
        long index = SAMPLE - 1 - (long)(rank + 3 * std::sqrt(rank) + 3);
        return {index < 0 ? -INF : sample[index], INF};
    }
    double sums[SAMPLE], sum = 0;
    for (long i = 0; i < SAMPLE; i += LANES) {
        float weights[LANES];
        store(weights, exp(load(sample + i) - set1(filters.top)));
        for (int lane = 0; lane < LANES; lane++) sums[i + lane] = sum += weights[lane];
    }
    // The most likely token alone has weight 1, and is probably not in the sample.
    const double all = std::max(1.0, sum * stride);
    const double left_out = (1 - (double)filters.top_p) * all * 0.7;
    long low = 0, high = SAMPLE;
    while (low < SAMPLE && sums[low] * stride <= left_out) low++;
    while (high > low && (sum - sums[high - 1]) * stride <= 0.9 * filters.top_p * all) high--;
    return {low == 0 ? -INF : sample[low - 1], SAMPLE - high < MANY ? INF : sample[high]};
}

// Collect the tokens in a range; with `WEIGHS`, sum the weights of all and of those above it.
template <bool WEIGHS>
void collect(const float* x, long size, const Filters& filters, Range range, Collected& out) {
    const vf divisor = set1(filters.divisor), top = set1(filters.top), floor = set1(filters.floor);
    const vf infinity = set1(INF), nothing = -infinity;
    const vf high = set1(range.high), no_weight = zero();
    out.count = 0;
    out.weight = out.weight_above = out.total = 0;
    vf all = zero(), above = zero();
    for (long i = 0; i < size; i += LANES) {
        vf v = load_until(x + i, size - i) / divisor;
        v = v < floor ? nothing : v;
        if (WEIGHS) {
            vf weight = exp(v - top);
            all = all + weight;
            above = above + (v > high ? weight : no_weight);
            v = v > high ? nothing : v;
            if ((i + LANES) % BLOCK == 0) {
                out.total += sum(all);
                out.weight_above += sum(above);
                all = above = zero();
            }
        }
        if (!any_exceeds(v, set1(range.low))) continue;
        float values[LANES], weights[LANES];
        store(values, v);
        store(weights, exp(v - top));
        for (int lane = 0; lane < LANES; lane++)
            if (values[lane] > range.low) {
                out.x[out.count] = values[lane];
                out.token_ids[out.count] = (int32_t)(i + lane);
                out.ranked[out.count++] = {values[lane], weights[lane]};
                out.weight += weights[lane];
            }
    }
    out.total += sum(all);
    out.weight_above += sum(above);
}

// The lowest kept logit, and the tokens above it.
struct End {
    float lowest;
    long count_above;
    double weight_above;
};

// The lowest logit with fewer than `limit` tokens above it, of a total weight below `mass`: a selection
// (Hoare, "Algorithm 65: Find", 1961) by weight as well as by rank.
End find_end(const Collected& found, long limit, double mass) {
    End end = {INF, 0, 0};
    long count_above = 0;
    double weight_above = found.weight_above;
    uint32_t random = 1;
    for (Weighted *first = found.ranked, *last = first + found.count; first < last;) {
        float pick[3];
        for (float& each : pick) {
            random = random * 1664525u + 1013904223u;
            each = first[(long)(((uint64_t)random * (uint64_t)(last - first)) >> 32)].x;
        }
        const float pivot = std::max(std::min(pick[0], pick[1]),
                                     std::min(std::max(pick[0], pick[1]), pick[2]));
        Weighted* equal =
            std::partition(first, last, [=](const Weighted& w) { return w.x > pivot; });
        double weight = 0;
        for (Weighted* each = first; each < equal; each++) weight += each->weight;
        const long above = count_above + (equal - first);
        if (above < limit && weight_above + weight < mass) {
            end = {pivot, above, weight_above + weight};
            Weighted* below =
                std::partition(equal, last, [=](const Weighted& w) { return w.x == pivot; });
            for (Weighted* each = equal; each < below; each++) weight += each->weight;
            count_above += below - first;
            weight_above += weight;
            first = below;
        } else {
            last = equal;
        }
    }
    return end;
}

// The lowest logit that top-k, and then top-p, keep.
float lowest_of_top_k(
    const float* x, long size, const Filters& filters, Range range, Collected& found
) {
    collect<false>(x, size, filters, range, found);
    if (found.count < filters.limit && !range.is_whole()) {
        return lowest_of_top_k(x, size, filters, WHOLE, found);
    }
    End end = find_end(found, filters.limit, INF);
    if (filters.top_p >= 1) return end.lowest;
    // Of the tokens with the last logit, count only as many as are missing.
    double total = found.weight;
    if (found.count > filters.limit) {
        double each = std::exp((double)end.lowest - filters.top);
        total = end.weight_above + (double)(filters.limit - end.count_above) * each;
    }
    return find_end(found, filters.limit, std::max(filters.top_p, TINY) * total).lowest;
}

// The lowest logit that top-p keeps.
float lowest_of_top_p(
    const float* x, long size, const Filters& filters, Range range, Collected& found
) {
    collect<true>(x, size, filters, range, found);
    const double mass = std::max(filters.top_p, TINY) * found.total;
    const bool is_inside = found.weight_above < mass && found.weight_above + found.weight >= mass;
    if (!is_inside && !range.is_whole()) return lowest_of_top_p(x, size, filters, WHOLE, found);
    return find_end(found, size, mass).lowest;
}

Best sample_among(TokenSearch search, const Collected& found) {
    for (long i = 0; i < found.count; i += LANES) {
        vu token_ids = {};
        std::memcpy(&token_ids, found.token_ids + i,
                    std::min<long>(LANES, found.count - i) * sizeof(int32_t));
        search.consider(load_until(found.x + i, found.count - i), token_ids);
    }
    return search.found();
}

Best sample_filtered(
    const float* x, long size, Hash hash, Filters filters, float min_p, float* room
) {
    filters.top = find_likeliest(x, size).score / filters.divisor;
    if (!std::isfinite(filters.top)) {  // an infinite or NaN logit wins, or all are -inf
        return sample_from(TokenSearch(hash, filters.divisor, -INF), x, size, 0);
    }
    filters.floor = min_p > 0 ? filters.top + std::log(min_p) : -INF;
    if (!filters.is_limited(size) && filters.top_p >= 1) {
        return sample_from(TokenSearch(hash, filters.divisor, filters.floor), x, size, 0);
    }
    Collected found = {room, (int32_t*)(room + size), (Weighted*)(room + 2 * size), 0, 0, 0, 0};
    const Range range = suggested(x, size, filters);
    float lowest = filters.is_limited(size) ? lowest_of_top_k(x, size, filters, range, found)
                                            : lowest_of_top_p(x, size, filters, range, found);
    if (found.weight_above > 0) {
        return sample_from(TokenSearch(hash, filters.divisor, lowest), x, size, 0);
    }
    return sample_among(TokenSearch(hash, 1.0f, lowest), found);
}

int useful_threads(long rows, long elements, long per_thread, int threads) {
    return (int)std::max<long>(1, std::min<long>({threads, rows, elements / per_thread}));
}

}  // namespace

// The most likely token of each row of logits [rows, size], `stride` elements apart, with its logit.
// The logits are those of the tokens from `first` on.
EXPORT void likeliest_tokens(
    const float* logits, long stride, long rows, long size, long first,
    int64_t* sampled, float* scores, int threads
) {
    threads = useful_threads(rows, rows * size, ELEMENTS_PER_THREAD, threads);
    share_evenly(rows, threads, [&](long row) {
        const Best best = find_likeliest(logits + row * stride, size);
        sampled[row] = first + best.token;
        scores[row] = best.score;
    });
}

// Request fields, by slot.
struct SlotFields {
    const int64_t *seeds, *children;
    const float* temperatures;
    const int64_t* top_ks;
    const float *top_ps, *min_ps;
};

// Sample a token for each row, and return its score as well; slots and positions are [rows]. `room`
// is scratch memory of 4 * size elements per thread if filters are fused, or null for noise alone.
// The logits are those of the tokens from `first` on: all of them, unless no row has filters.
EXPORT void sample_tokens(
    const float* logits, long stride, long rows, long size, long first,
    const int64_t* slots, const int64_t* positions, const SlotFields* fields, float* room,
    int64_t* sampled, float* scores, int threads
) {
    const SlotFields of = *fields;
    auto sample = [=](long row, float* own_room) -> Best {
        const float* x = logits + row * stride;
        const int64_t slot = slots[row];
        const float temperature = of.temperatures[slot];
        if (!(temperature > 0)) {
            const Best best = find_likeliest(x, size);
            return {best.score, first + best.token};
        }
        const Hash hash(of.seeds[slot], of.children[slot], positions[row]);
        if (own_room == nullptr) return sample_from(TokenSearch(hash, 1.0f, -INF), x, size, first);
        const float divisor = std::max(temperature, MIN_TEMPERATURE), min_p = of.min_ps[slot];
        const int64_t top_k = of.top_ks[slot];
        const long limit = top_k > 0 && top_k < size ? (long)top_k : size;
        if (limit == size && of.top_ps[slot] >= 1 && !(min_p > 0)) {
            return sample_from(TokenSearch(hash, divisor, -INF), x, size, first);
        }
        const Filters filters = {divisor, 0, -INF, limit, of.top_ps[slot]};
        return sample_filtered(x, size, hash, filters, min_p, own_room);
    };
    threads = useful_threads(rows, rows * size, SAMPLED_PER_THREAD, threads);
    std::atomic<long> next{0};
    in_parts(threads, [&](long part, long) {
        float* own_room = room ? room + 4 * size * part : nullptr;
        for (long row; (row = next.fetch_add(1)) < rows;) {
            const Best best = sample(row, own_room);
            sampled[row] = best.token;
            scores[row] = best.score;
        }
    });
}
