// Norms, gated activations and masks of float32 rows, each in one pass.
//
// A row is computed independently and always in the same order, and its last elements are computed
// in a padded vector. So a row's bits depend neither on its batch nor on the number of threads.
#include "export.h"
#include "rows.h"

namespace {

// Fewer elements per thread take less time than passing them to a thread that is awake.
constexpr long ELEMENTS_PER_THREAD = 1 << 12;

constexpr int CHAINS = 4;  // independent partial sums

// Returns the sum of squares of x + residual, and writes x + residual to `total`, if there is a
// residual.
template <bool HAS_RESIDUAL>
INLINE float sum_of_squares(const float* x, const float* residual, float* total, long size) {
    vf sums[CHAINS] = {};
    long i = 0;
    for (; i + CHAINS * LANES <= size; i += CHAINS * LANES)
        for (int c = 0; c < CHAINS; c++) {
            vf v = load(x + i + c * LANES);
            if (HAS_RESIDUAL) {
                v = v + load(residual + i + c * LANES);
                store(total + i + c * LANES, v);
            }
            sums[c] = fma(v, v, sums[c]);
        }
    for (; i < size; i += LANES) {
        long count = size - i < LANES ? size - i : LANES;
        vf v = load_part(x + i, count);
        if (HAS_RESIDUAL) {
            v = v + load_part(residual + i, count);
            store_part(total + i, v, count);
        }
        sums[0] = fma(v, v, sums[0]);
    }
    return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

INLINE void multiply(const float* x, float factor, const float* weight, float* out, long size) {
    const vf scale = set1(factor);
    long i = 0;
    for (; i + LANES <= size; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
    if (i < size) {
        vf product = load_part(x + i, size - i) * scale * load_part(weight + i, size - i);
        store_part(out + i, product, size - i);
    }
}

// Returns 1 / sqrt(mean + eps). Squares of large numbers overflow, and those of small numbers
// underflow, so such rows are summed again in float64.
INLINE float inverse_length(const float* x, float squares, long size, float eps) {
    double mean = squares;
    if (!(squares > 1e-30f && squares < 1e38f)) {
        mean = 0;
        for (long i = 0; i < size; i++) mean += (double)x[i] * x[i];
    }
    return (float)(1.0 / std::sqrt(mean / size + eps));
}

template <bool HAS_RESIDUAL>
void norm_row(
    const float* x, const float* residual, const float* weight, float* out, float* total,
    long size, float eps
) {
    float squares = sum_of_squares<HAS_RESIDUAL>(x, residual, total, size);
    const float* summed = HAS_RESIDUAL ? total : x;
    multiply(summed, inverse_length(summed, squares, size, eps), weight, out, size);
}

INLINE vf absolute(vf v) { return from_bits(bits(v) & set1i(0x7fffffff)); }

// e^v for v <= 0: the result of `exp`, without the steps that only positive v need.
INLINE vf exp_of_negative(vf v) {
    const vf low = set1(-87.33654f), zeros = zero();
    vf x = max(v, low);
    vf n, y = exp_without_power(x, n);
    y = y * from_bits((__builtin_convertvector(n, vi) + set1i(127)) << 23);
    return v < low ? zeros : y;
}

// x * sigmoid(slope), without overflow. NaN stays NaN, because x is NaN wherever the slope is.
INLINE vf gated(vf x, vf slope) {
    const vf one = set1(1.0f);
    vf small = exp_of_negative(-absolute(slope));
    vf above = slope >= zero() ? one : small;
    return x * (above / (one + small));
}

struct Silu {
    INLINE vf of(vf gate) { return gated(gate, gate); }
};

struct GeluTanh {  // (1 + tanh(u)) / 2 is the sigmoid of 2 * u
    INLINE vf of(vf gate) {
        const vf slope = set1(1.5957691216057308f), cube = set1(0.044715f);
        return gated(gate, slope * fma(cube * gate * gate, gate, gate));
    }
};

template <class Activation>
void gate_row(const float* gate, float* out, long size) {
    const float* up = gate + size;
    long i = 0;
    for (; i + LANES <= size; i += LANES) {
        store(out + i, Activation::of(load(gate + i)) * load(up + i));
    }
    if (i < size) {
        vf product = Activation::of(load_part(gate + i, size - i)) * load_part(up + i, size - i);
        store_part(out + i, product, size - i);
    }
}

template <class Activation>
void gate_rows(const float* gate_up, float* out, long rows, long size, int threads) {
    for_each_row(rows, rows * size, ELEMENTS_PER_THREAD, threads, [=](long row) {
        gate_row<Activation>(gate_up + row * 2 * size, out + row * size, size);
    });
}

}  // namespace

// Constants of a row norm, for all calls of a layer.
struct Norm {
    const float* weight;  // [size]
    int64_t size;
    float eps;
    int32_t threads;
};

// out = norm(x) * weight; both [rows, size].
EXPORT void rms_norm(const Norm* norm, const float* x, float* out, long rows) {
    const Norm of = *norm;
    for_each_row(rows, rows * of.size, ELEMENTS_PER_THREAD, of.threads, [=](long row) {
        const long at = row * of.size;
        norm_row<false>(x + at, nullptr, of.weight, out + at, nullptr, of.size, of.eps);
    });
}

// The same for x + residual, in place: x becomes the norm, and residual becomes the sum.
EXPORT void add_rms_norm(const Norm* norm, float* x, float* residual, long rows) {
    const Norm of = *norm;
    for_each_row(rows, rows * of.size, ELEMENTS_PER_THREAD, of.threads, [=](long row) {
        float *own = x + row * of.size, *total = residual + row * of.size;
        norm_row<true>(own, total, of.weight, own, total, of.size, of.eps);
    });
}

// Norms of heads, each with its own weight: x is [tokens, heads, size] with a token stride of
// `stride` elements, weight is [heads, size].
EXPORT void head_rms_norm(
    const float* x, long stride, const float* weight, float* out,
    long tokens, long heads, long size, float eps, int threads
) {
    const long elements = heads * size;
    for_each_row(tokens, tokens * elements, ELEMENTS_PER_THREAD, threads, [=](long token) {
        for (long at = 0; at < elements; at += size) {
            const float* head = x + token * stride + at;
            norm_row<false>(
                head, nullptr, weight + at, out + token * elements + at, nullptr, size, eps
            );
        }
    });
}

// out [rows, size] = activation(gate) * up, with gate_up [rows, 2 * size].
EXPORT void silu_and_mul(const float* gate_up, float* out, long rows, long size, int threads) {
    gate_rows<Silu>(gate_up, out, rows, size, threads);
}

EXPORT void gelu_tanh_and_mul(const float* gate_up, float* out, long rows, long size, int threads) {
    gate_rows<GeluTanh>(gate_up, out, rows, size, threads);
}

// Writes -inf where a bit is 0: row rows[i] of logits (with a row stride of `stride` elements) is
// masked by the bits of words[i], with words [masks, words_stride]. Logits of words without a zero
// bit are not written.
EXPORT void mask_logits(
    float* logits, long stride, long size, const int64_t* rows, long masks,
    const uint32_t* words, long words_stride, int threads
) {
    for_each_row(masks, masks * size, ELEMENTS_PER_THREAD, threads, [=](long mask) {
        float* row = logits + rows[mask] * stride;
        for (long first = 0; first < size; first += 32) {
            const uint32_t word = words[mask * words_stride + first / 32];
            if (word == 0xffffffffu) continue;
            const long count = size - first < 32 ? size - first : 32;
            for (long i = 0; i < count; i++)
                row[first + i] = word >> i & 1 ? row[first + i] : -INFINITY;
        }
    });
}
