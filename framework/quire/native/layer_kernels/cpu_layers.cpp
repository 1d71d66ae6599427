// Norms, activations and masks of float32 rows, each in one pass. An element's bits depend neither on
// its batch nor on the number of threads.
#include "activations.h"
#include "decode_steps.h"
#include "export.h"
#include "norms.h"
#include "rows.h"

namespace {

// Fewer elements per thread take less time than passing them to a thread that is awake.
constexpr long ELEMENTS_PER_THREAD = 1 << 12;

constexpr long PIECE = 1 << 10;  // elements of an activation that one thread computes at once

INLINE long pieces_of(long size) { return (size + PIECE - 1) / PIECE; }
INLINE long end_of(long begin, long size) { return begin + PIECE < size ? begin + PIECE : size; }

template <class Function>
void activate_piece(const float* x, float* out, long size, const float* coefficients) {
    long i = 0;
    for (; i + LANES <= size; i += LANES) store(out + i, Function::of(load(x + i), coefficients));
    if (i < size) {
        vf v = load_part(x + i, size - i);
        store_part(out + i, Function::of(v, coefficients), size - i);
    }
}

template <class Function>
void gate_piece(
    const float* gate, const float* up, float* out, long size, const float* coefficients
) {
    long i = 0;
    for (; i + LANES <= size; i += LANES) {
        store(out + i, Function::of(load(gate + i), coefficients) * load(up + i));
    }
    if (i < size) {
        vf v = Function::of(load_part(gate + i, size - i), coefficients);
        store_part(out + i, v * load_part(up + i, size - i), size - i);
    }
}

}  // namespace

// Constants of a row norm, for all calls of a layer.
struct Norm {
    const float* weight;  // [size], or null
    const float* bias;    // [size], or null; layer norm only
    int64_t size;
    float eps;
    int32_t threads;
};

// out = norm(x) * weight; both [rows, size].
EXPORT void rms_norm(const Norm* norm, const float* x, float* out, long rows) {
    const Norm of = *norm;
    for_each_row(rows, rows * of.size, ELEMENTS_PER_THREAD, of.threads, [=](long row) {
        const long at = row * of.size;
        rms_norm_row<false>(x + at, nullptr, of.weight, out + at, nullptr, of.size, of.eps);
    });
}

// The same for x + residual, in place: x becomes the norm, and residual becomes the sum.
EXPORT void add_rms_norm(const Norm* norm, float* x, float* residual, long rows) {
    const Norm of = *norm;
    for_each_row(rows, rows * of.size, ELEMENTS_PER_THREAD, of.threads, [=](long row) {
        float *own = x + row * of.size, *total = residual + row * of.size;
        rms_norm_row<true>(own, total, of.weight, own, total, of.size, of.eps);
    });
}

// out = norm(x) * weight + bias; both [rows, size].
EXPORT void layer_norm(const Norm* norm, const float* x, float* out, long rows) {
    const Norm of = *norm;
    for_each_row(rows, rows * of.size, ELEMENTS_PER_THREAD, of.threads, [=](long row) {
        const long at = row * of.size;
        layer_norm_row<false>(
            x + at, nullptr, of.weight, of.bias, out + at, nullptr, of.size, of.eps
        );
    });
}

// The same for x + residual, in place, as in `add_rms_norm`.
EXPORT void add_layer_norm(const Norm* norm, float* x, float* residual, long rows) {
    const Norm of = *norm;
    for_each_row(rows, rows * of.size, ELEMENTS_PER_THREAD, of.threads, [=](long row) {
        float *own = x + row * of.size, *total = residual + row * of.size;
        layer_norm_row<true>(own, total, of.weight, of.bias, own, total, of.size, of.eps);
    });
}

// Constants of norms of a token's groups of elements: heads, or all heads of a projection.
struct GroupNorm {
    const float* weight;    // [ends[groups - 1]], or null
    const int64_t* ends;    // [groups]: a group's end in a token's elements
    const double* counts;   // [groups]: elements that a group's squares are summed over
    int64_t groups;
    float eps;
    int32_t is_centred;     // layer norm; otherwise RMS norm
    int32_t threads;
};

// Tokens of x and out are `stride` and `out_stride` elements apart; out may be x.
EXPORT void norm_groups(
    const GroupNorm* norm, const float* x, long stride, float* out, long out_stride, long tokens
) {
    const GroupNorm of = *norm;
    const long elements = of.ends[of.groups - 1];
    for_each_row(tokens, tokens * elements, ELEMENTS_PER_THREAD, of.threads, [=](long token) {
        const float* row = x + token * stride;
        float* target = out + token * out_stride;
        long at = 0;
        for (long group = 0; group < of.groups; at = of.ends[group++]) {
            const long size = of.ends[group] - at;
            const float* weight = of.weight ? of.weight + at : nullptr;
            if (of.is_centred) {
                layer_norm_row<false>(
                    row + at, nullptr, weight, nullptr, target + at, nullptr, size, of.eps
                );
            } else {
                rms_norm_row<false>(row + at, nullptr, weight, target + at, nullptr, size, of.eps);
            }
        }
    });
}

// squares [tokens, groups]: sums of the squares of this device's elements.
EXPORT void square_groups(
    const GroupNorm* norm, const float* x, long stride, float* squares, long tokens
) {
    const GroupNorm of = *norm;
    const long elements = of.ends[of.groups - 1];
    for_each_row(tokens, tokens * elements, ELEMENTS_PER_THREAD, of.threads, [=](long token) {
        long at = 0;
        for (long group = 0; group < of.groups; at = of.ends[group++]) {
            squares[token * of.groups + group] = sum_of_squares<false>(
                x + token * stride + at, nullptr, nullptr, of.ends[group] - at
            );
        }
    });
}

// x = x / sqrt(squares / counts + eps) * weight, in place, with the squares of all devices.
EXPORT void scale_groups(
    const GroupNorm* norm, const float* squares, float* x, long stride, long tokens
) {
    const GroupNorm of = *norm;
    const long elements = of.ends[of.groups - 1];
    for_each_row(tokens, tokens * elements, ELEMENTS_PER_THREAD, of.threads, [=](long token) {
        float* row = x + token * stride;
        long at = 0;
        for (long group = 0; group < of.groups; at = of.ends[group++]) {
            const double mean = squares[token * of.groups + group] / of.counts[group];
            const float factor = (float)(1.0 / std::sqrt(mean + of.eps));
            const float* weight = of.weight ? of.weight + at : nullptr;
            multiply(row + at, factor, weight, row + at, of.ends[group] - at);
        }
    });
}

// Constants of an activation, for all calls of a layer.
struct Activation {
    int32_t function;  // see `with_function`
    int32_t threads;
    float coefficients[4];
};

// out = activation(x), for all elements; out may be x.
EXPORT void activate(const Activation* activation, const float* x, float* out, long size) {
    with_function(activation->function, [=](auto function) {
        for_each_row(
            pieces_of(size), size, ELEMENTS_PER_THREAD, activation->threads, [=](long piece) {
                const long at = piece * PIECE, count = end_of(at, size) - at;
                activate_piece<decltype(function)>(
                    x + at, out + at, count, activation->coefficients
                );
            }
        );
    });
}

// out [rows, size] = activation(gate) * up, with gate_up [rows, 2 * size].
EXPORT void activate_gate(
    const Activation* activation, const float* gate_up, float* out, long rows, long size
) {
    const long pieces = pieces_of(size), threads = activation->threads;
    with_function(activation->function, [=](auto function) {
        for_each_row(rows * pieces, rows * size, ELEMENTS_PER_THREAD, threads, [=](long index) {
            const long row = index / pieces, at = index % pieces * PIECE;
            const float* gate = gate_up + row * 2 * size + at;
            gate_piece<decltype(function)>(
                gate, gate + size, out + row * size + at, end_of(at, size) - at,
                activation->coefficients
            );
        });
    });
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
