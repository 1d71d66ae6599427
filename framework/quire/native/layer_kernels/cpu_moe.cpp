// Router of a mixture of experts, grouping of rows by expert, and the sum of a token's experts.
//
// A token is computed independently and always in the same order, so its bits depend neither on its
// batch nor on the number of threads. What a call does depends on ids that it reads, so it can be
// repeated for other tokens.
#include <algorithm>
#include <vector>

#include "export.h"
#include "rows.h"

// Constants of a router, for all calls of a layer.
struct Router {
    const float* weight;        // [experts, hidden]
    const float* bias;          // [experts] or null
    const float* choice_bias;   // [experts] or null
    const float* expert_scale;  // [experts] or null
    const float* input_scale;   // [hidden]; null: the input is not normed
    int64_t experts, hidden, top_k;
    int64_t score;  // 0 softmax, 1 sigmoid, 2 softmax of the chosen, 3 sigmoid, 4 sparsemixer
    int64_t groups, top_groups;
    int32_t sums_two_best;  // the score of a group; otherwise its best
    int32_t renormalizes;
    float sum_offset, min_sum, scale, threshold, norm_eps;
    int32_t threads;
};

namespace {

// Fewer elements per thread take less time than passing them to a thread that is awake.
constexpr long ELEMENTS_PER_THREAD = 1 << 12;
constexpr long PRODUCTS_PER_THREAD = 1 << 15;

enum Score { SOFTMAX, SIGMOID, TOP_SOFTMAX, TOP_SIGMOID, SPARSEMIXER };

// out[t][e] = x[t] @ weight[e] for some adjacent tokens and experts. Each is the sum of the lanes of
// one accumulator, so its bits are the same in a tile of any shape.
template <int TOKENS, int EXPERTS>
INLINE void dot_products(
    const float* x, const float* weight, long hidden, float* out, long out_row
) {
    vf acc[TOKENS][EXPERTS] = {};
    long k = 0;
    for (; k + LANES <= hidden; k += LANES)
        for (int e = 0; e < EXPERTS; e++) {
            vf column = load(weight + e * hidden + k);
            for (int t = 0; t < TOKENS; t++)
                acc[t][e] = fma(load(x + t * hidden + k), column, acc[t][e]);
        }
    if (k < hidden)
        for (int e = 0; e < EXPERTS; e++) {
            vf column = load_part(weight + e * hidden + k, hidden - k);
            for (int t = 0; t < TOKENS; t++)
                acc[t][e] = fma(load_part(x + t * hidden + k, hidden - k), column, acc[t][e]);
        }
    for (int t = 0; t < TOKENS; t++)
        for (int e = 0; e < EXPERTS; e++) out[t * out_row + e] = sum(acc[t][e]);
}

constexpr int WIDE = 8, TILE = 4;  // experts at once for one token; tokens and experts for several

void logits_of(
    const Router& of, const float* x, float* logits, long token, long tokens, long first, long last
) {
    const long hidden = of.hidden;
    for (; tokens >= TILE; token += TILE, tokens -= TILE) {
        long e = first;
        for (; e + TILE <= last; e += TILE)
            dot_products<TILE, TILE>(
                x + token * hidden, of.weight + e * hidden, hidden,
                logits + token * of.experts + e, of.experts
            );
        for (; e < last; e++)
            dot_products<TILE, 1>(
                x + token * hidden, of.weight + e * hidden, hidden,
                logits + token * of.experts + e, of.experts
            );
    }
    for (; tokens; token++, tokens--) {
        long e = first;
        for (; e + WIDE <= last; e += WIDE)
            dot_products<1, WIDE>(
                x + token * hidden, of.weight + e * hidden, hidden,
                logits + token * of.experts + e, of.experts
            );
        for (; e < last; e++)
            dot_products<1, 1>(
                x + token * hidden, of.weight + e * hidden, hidden,
                logits + token * of.experts + e, of.experts
            );
    }
}

// The norm of a row without a weight, times a vector and 1 / sqrt(size).
void norm_input(const Router& of, const float* x, float* out) {
    double squares = 0;
    for (long i = 0; i < of.hidden; i++) squares += (double)x[i] * x[i];
    const float factor = (float)(1.0 / std::sqrt(squares / of.hidden + of.norm_eps));
    const float root = (float)(1.0 / std::sqrt((double)of.hidden));
    for (long i = 0; i < of.hidden; i++) out[i] = x[i] * factor * of.input_scale[i] * root;
}

INLINE float exp1(float x) { return exp(set1(x))[0]; }
INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp1(-x)); }

// values = softmax(values); -inf becomes 0.
void softmax(float* values, long count) {
    float most = -INFINITY, total = 0;
    for (long i = 0; i < count; i++) most = values[i] > most ? values[i] : most;
    for (long i = 0; i < count; i++) total += values[i] = exp1(values[i] - most);
    for (long i = 0; i < count; i++) values[i] /= total;
}

// Index of the largest value, of the first of several; entries that are taken do not count. With
// NaN any other index, but never one that is taken.
long best_of(const float* values, const std::vector<char>& is_taken, long first, long last) {
    long best = -1;
    for (long i = first; i < last; i++)
        if (!is_taken[i] && (best < 0 || values[i] > values[best])) best = i;
    return best;
}

// Memory of one token's choice.
struct Choice {
    std::vector<float> scores, for_choice;
    std::vector<char> is_taken;
    std::vector<float> group_scores;
    std::vector<char> is_best_group;
};

float group_score(const Router& of, const float* values, long first, long size) {
    float best = -INFINITY, second = -INFINITY;
    for (long i = first; i < first + size; i++)
        if (values[i] > best) {
            second = best;
            best = values[i];
        } else if (values[i] > second) {
            second = values[i];
        }
    return of.sums_two_best ? best + second : best;
}

// Takes away the experts of all but the best groups.
void take_other_groups(const Router& of, Choice& choice) {
    const long size = of.experts / of.groups;
    choice.group_scores.resize(of.groups);
    choice.is_best_group.assign(of.groups, 0);
    for (long g = 0; g < of.groups; g++)
        choice.group_scores[g] = group_score(of, choice.for_choice.data(), g * size, size);
    for (long i = 0; i < of.top_groups; i++) {
        const float* scores = choice.group_scores.data();
        choice.is_best_group[best_of(scores, choice.is_best_group, 0, of.groups)] = 1;
    }
    for (long e = 0; e < of.experts; e++) choice.is_taken[e] = !choice.is_best_group[e / size];
}

void choose_best(const Router& of, Choice& choice, int64_t* experts) {
    for (long i = 0; i < of.top_k; i++) {
        const long best = best_of(choice.for_choice.data(), choice.is_taken, 0, of.experts);
        choice.is_taken[best] = 1;
        experts[i] = best;
    }
}

void by_scores(const Router& of, Choice& choice, int64_t* experts, float* weights) {
    if (of.score == SOFTMAX) softmax(choice.scores.data(), of.experts);
    else for (float& score : choice.scores) score = sigmoid(score);
    choice.for_choice = choice.scores;
    if (of.choice_bias)
        for (long e = 0; e < of.experts; e++) choice.for_choice[e] += of.choice_bias[e];
    if (of.groups > of.top_groups) take_other_groups(of, choice);
    choose_best(of, choice, experts);
    float total = 0;
    for (long i = 0; i < of.top_k; i++) total += weights[i] = choice.scores[experts[i]];
    total += of.sum_offset;
    if (total < of.min_sum) total = of.min_sum;
    for (long i = 0; i < of.top_k; i++) {
        if (of.renormalizes) weights[i] /= total;
        weights[i] *= of.scale;
    }
}

void by_top_logits(const Router& of, Choice& choice, int64_t* experts, float* weights) {
    choice.for_choice = choice.scores;
    choose_best(of, choice, experts);
    for (long i = 0; i < of.top_k; i++) weights[i] = choice.scores[experts[i]];
    if (of.score == TOP_SOFTMAX) return softmax(weights, of.top_k);
    for (long i = 0; i < of.top_k; i++) weights[i] = sigmoid(weights[i]);
}

void by_sparsemixer(const Router& of, Choice& choice, int64_t* experts, float* weights) {
    const std::vector<float>& logits = choice.scores;
    for (long i = 0; i < of.top_k; i++) {
        const long best = best_of(logits.data(), choice.is_taken, 0, of.experts);
        const float most = logits[best];
        float total = 0;
        for (long e = 0; e < of.experts; e++) {
            const float size = std::fabs(logits[e]), factor = size > most ? size : most;
            const bool is_far = (most - logits[e]) / factor > of.threshold;
            if (!choice.is_taken[e] && !is_far) total += exp1(logits[e] - most);
        }
        experts[i] = best;
        weights[i] = 1.0f / total;
        choice.is_taken[best] = 1;
    }
}

void choose(const Router& of, const float* logits, int64_t* experts, float* weights) {
    static thread_local Choice choice;
    choice.scores.assign(logits, logits + of.experts);
    choice.is_taken.assign(of.experts, 0);
    if (of.bias)
        for (long e = 0; e < of.experts; e++) choice.scores[e] += of.bias[e];
    switch (of.score) {
        case SOFTMAX:
        case SIGMOID: by_scores(of, choice, experts, weights); break;
        case TOP_SOFTMAX:
        case TOP_SIGMOID: by_top_logits(of, choice, experts, weights); break;
        case SPARSEMIXER: by_sparsemixer(of, choice, experts, weights); break;
    }
    if (of.expert_scale)
        for (long i = 0; i < of.top_k; i++) weights[i] *= of.expert_scale[experts[i]];
}

template <bool IS_WEIGHTED>
INLINE void add_row(float* total, const float* row, float weight, long size, bool is_first) {
    const vf factor = set1(weight);
    long i = 0;
    for (; i + LANES <= size; i += LANES) {
        vf v = load(row + i);
        if (IS_WEIGHTED) v = v * factor;
        store(total + i, is_first ? v : load(total + i) + v);
    }
    if (i < size) {
        vf v = load_part(row + i, size - i);
        if (IS_WEIGHTED) v = v * factor;
        if (!is_first) v = load_part(total + i, size - i) + v;
        store_part(total + i, v, size - i);
    }
}

}  // namespace

// Writes the experts of each token of x [tokens, hidden] and their weights, [tokens, top_k] both.
// `logits` [tokens, experts] and `inputs` [tokens, hidden], which is only for a normed input, are
// scratch memory.
EXPORT void route(
    const Router* router, const float* x, float* inputs, float* logits,
    int64_t* experts, float* weights, long tokens
) {
    const Router of = *router;
    if (of.input_scale) {
        for_each_row(tokens, tokens * of.hidden, ELEMENTS_PER_THREAD, of.threads, [=](long t) {
            norm_input(of, x + t * of.hidden, inputs + t * of.hidden);
        });
        x = inputs;
    }
    const long useful = tokens * of.experts * of.hidden / PRODUCTS_PER_THREAD;
    const long threads = std::max(1l, std::min((long)of.threads, useful));
    const bool splits_tokens = tokens >= TILE * threads;
    in_parts(threads, [=](long part, long parts) {
        const long count = splits_tokens ? tokens : of.experts;
        const long begin = count * part / parts, end = count * (part + 1) / parts;
        if (splits_tokens) logits_of(of, x, logits, begin, end - begin, 0, of.experts);
        else logits_of(of, x, logits, 0, tokens, begin, end);
    });
    for_each_row(tokens, tokens * of.experts, ELEMENTS_PER_THREAD, of.threads, [=](long t) {
        choose(of, logits + t * of.experts, experts + t * of.top_k, weights + t * of.top_k);
    });
}

// Sorts the pairs (token, index) of experts [count] by expert, those of an expert in their order.
// ends [own] are the rows up to and including each of the experts first ... first + own - 1, pairs
// [count] are the pairs of their rows, and rows [count] are the rows of pairs; -1 for an expert of
// another device. Other entries of `pairs` are 0.
EXPORT void group_rows(
    const int64_t* experts, long count, int64_t first, long own,
    int64_t* pairs, int64_t* rows, int64_t* ends
) {
    for (long e = 0; e < own; e++) ends[e] = 0;
    for (long i = 0; i < count; i++) {
        const int64_t expert = experts[i] - first;
        if (expert >= 0 && expert < own) ends[expert]++;
    }
    int64_t total = 0;
    for (long e = 0; e < own; e++) {
        const int64_t rows_of_expert = ends[e];
        ends[e] = total;
        total += rows_of_expert;
    }
    for (long i = 0; i < count; i++) {
        const int64_t expert = experts[i] - first;
        rows[i] = -1;
        if (expert < 0 || expert >= own) continue;
        rows[i] = ends[expert]++;  // the start of an expert becomes its end
        pairs[rows[i]] = i;
    }
    for (long i = total; i < count; i++) pairs[i] = 0;
}

// out[r] = x[pairs[r] / top_k], times weights[pairs[r]] unless that is null, for all own rows.
EXPORT void gather_rows(
    const float* x, const int64_t* pairs, const int64_t* ends, long own, const float* weights,
    long top_k, long size, float* out, int threads
) {
    const long count = own ? ends[own - 1] : 0;
    for_each_row(count, count * size, ELEMENTS_PER_THREAD, threads, [=](long row) {
        const long pair = pairs[row];
        const float* from = x + pair / top_k * size;
        float* to = out + row * size;
        if (weights) add_row<true>(to, from, weights[pair], size, true);
        else std::memcpy(to, from, size * sizeof(float));
    });
}

// out[t] = sum of the rows of its pairs, in their order, times weights unless that is null.
EXPORT void combine_rows(
    const float* outputs, const int64_t* rows, const float* weights, long tokens, long top_k,
    long size, float* out, int threads
) {
    for_each_row(tokens, tokens * top_k * size, ELEMENTS_PER_THREAD, threads, [=](long token) {
        float* total = out + token * size;
        bool is_first = true;
        for (long i = token * top_k; i < (token + 1) * top_k; i++) {
            if (rows[i] < 0) continue;
            const float* row = outputs + rows[i] * size;
            if (weights) add_row<true>(total, row, weights[i], size, is_first);
            else add_row<false>(total, row, 1.0f, size, is_first);
            is_first = false;
        }
        if (is_first) std::memset(total, 0, size * sizeof(float));
    });
}

// out [rows, size] = (up + 1) * gate * sigmoid(alpha * gate), with the gate at most `limit` and up
// between -limit and limit; gate_up [rows, 2 * size].
EXPORT void clamped_swiglu(
    const float* gate_up, float* out, long rows, long size, float alpha, float limit, int threads
) {
    for_each_row(rows, rows * size, ELEMENTS_PER_THREAD, threads, [=](long row) {
        const float *gates = gate_up + row * 2 * size, *ups = gates + size;
        const vf one = set1(1.0f), highest = set1(limit), lowest = set1(-limit);
        for (long i = 0; i < size; i += LANES) {
            const long count = size - i < LANES ? size - i : LANES;
            vf gate = load_part(gates + i, count), up = load_part(ups + i, count);
            gate = gate > highest ? highest : gate;
            up = up > highest ? highest : up < lowest ? lowest : up;
            vf value = (up + one) * (gate / (one + exp(-(gate * set1(alpha)))));
            store_part(out + row * size + i, value, count);
        }
    });
}
