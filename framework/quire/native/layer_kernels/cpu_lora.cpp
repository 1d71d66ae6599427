// LoRA adapters of a linear layer, computed token by token.
//
// Each token is computed by one thread, in an order that does not depend on the other tokens.
#include "export.h"
#include "rows.h"

// Adapters of one linear layer; see `cpu_lora.py`. Slice s has rows spans[s] to spans[s + 1] of an
// adapter's `a`, and outputs[s] to outputs[s + 1].
struct Adapters {
    const float* a;          // [max_loras, rows, inputs]
    const float* b;          // [max_loras, max_rank, outputs of all slices]
    const int32_t* spans;    // [max_loras, slices + 1]
    const int64_t* outputs;  // [slices + 1]
    int64_t inputs, rows, max_rank, slices;
};

namespace {

constexpr long PRODUCTS_PER_THREAD = 1 << 17;  // fewer take less time than waking a thread
constexpr int DOTS = 4;                        // rows of A per iteration

// hidden[r] = x . a[r]
void shrink(const float* x, const float* a, long rows, long inputs, float* hidden) {
    for (long first = 0; first < rows; first += DOTS) {
        const long count = rows - first < DOTS ? rows - first : DOTS;
        const float* row[DOTS];
        for (int d = 0; d < DOTS; d++) row[d] = a + (first + (d < count ? d : 0)) * inputs;
        vf sums[DOTS] = {};
        long i = 0;
        for (; i + LANES <= inputs; i += LANES) {
            vf v = load(x + i);
            for (int d = 0; d < DOTS; d++) sums[d] = fma(v, load(row[d] + i), sums[d]);
        }
        if (i < inputs) {
            vf v = load_part(x + i, inputs - i);
            for (int d = 0; d < DOTS; d++)
                sums[d] = fma(v, load_part(row[d] + i, inputs - i), sums[d]);
        }
        for (int d = 0; d < count; d++) hidden[first + d] = sum(sums[d]);
    }
}

// out[o] += hidden . b[:, o], for one slice; rows of b have a stride of `stride` elements.
void expand(float* out, const float* hidden, const float* b, long rank, long stride, long size) {
    long i = 0;
    for (; i + 2 * LANES <= size; i += 2 * LANES) {
        vf first = load(out + i), second = load(out + i + LANES);
        for (long r = 0; r < rank; r++) {
            vf factor = set1(hidden[r]);
            first = fma(factor, load(b + r * stride + i), first);
            second = fma(factor, load(b + r * stride + i + LANES), second);
        }
        store(out + i, first);
        store(out + i + LANES, second);
    }
    for (; i < size; i += LANES) {
        const long count = size - i < LANES ? size - i : LANES;
        vf total = load_part(out + i, count);
        for (long r = 0; r < rank; r++)
            total = fma(set1(hidden[r]), load_part(b + r * stride + i, count), total);
        store_part(out + i, total, count);
    }
}

}  // namespace

// out [tokens, outputs] += the output of adapter index[token] for x [tokens, inputs]; -1 is none.
// `hidden` is scratch memory for [tokens, rows].
EXPORT void add_lora(
    float* out, const float* x, const int64_t* index, long tokens, float* hidden,
    const Adapters* adapters, int threads
) {
    const Adapters of = *adapters;
    const long outputs = of.outputs[of.slices];
    const long products = tokens * of.rows * (of.inputs + outputs / of.slices);
    for_each_row(tokens, products, PRODUCTS_PER_THREAD, threads, [=](long token) {
        const long adapter = index[token];
        if (adapter < 0) return;
        const int32_t* span = of.spans + adapter * (of.slices + 1);
        float* own = hidden + token * of.rows;
        const float* b = of.b + adapter * of.max_rank * outputs;
        shrink(x + token * of.inputs, of.a + adapter * of.rows * of.inputs, span[of.slices],
               of.inputs, own);
        for (long s = 0; s < of.slices; s++) {
            const long start = of.outputs[s];
            expand(out + token * outputs + start, own + span[s], b + start, span[s + 1] - span[s],
                   outputs, of.outputs[s + 1] - start);
        }
    });
}
