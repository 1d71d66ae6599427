// Attention of a layer in one call: write K and V, attend, merge the outputs of cut items.
//
// Threads take pieces of the work list dynamically; there is a barrier between the three phases.

#include <atomic>

#include "attention_few.h"
#include "attention_many.h"
#include "attention_pages.h"
#include "attention_work.h"
#include "export.h"
#include "threads.h"

namespace {

constexpr long WRITTEN_ROWS = 32;  // minimum rows to write per thread

struct Pieces {
    long total, count;
    long begin(long piece) const { return (long)((__int128)total * piece / count); }
};

// Writes the output of a row: the weighted sum divided by the sum of the weights, sink included.
template <class Kind>
void write_output(const Work& work, const Item& item, long row, const float* sum, float largest,
                  float total) {
    constexpr long SLOT = Slots<Kind>::SLOT, VECTORS = SLOT / LANES;
    const Layer& layer = work.layer;
    float factor = layer.v_scale / total;
    if (layer.sinks) {
        float sink = layer.sinks[work.head(item, row)] * LOG2_E;
        float most = std::max(sink, largest), mine = power_of_two(largest - most);
        factor = layer.v_scale * mine / (total * mine + power_of_two(sink - most));
    }
    const long D = work.sizes.D;
    float* out = work.output(item, row);
    for (long slot = 0; slot < Slots<Kind>::count(D); slot++) {
        vf sums[VECTORS];
        for (int i = 0; i < VECTORS; i++) sums[i] = load(sum + slot * SLOT + i * LANES);
        Products<Kind>::order(sums);
        for (int i = 0; i < VECTORS; i++) sums[i] = sums[i] * set1(factor);
        std::memcpy(out + Slots<Kind>::offset(D, slot), sums,
                    std::min(D, SLOT) * sizeof(float));
    }
}

template <class Kind>
void write_outputs(const Work& work, const Item& item, const State& state) {
    for (long row = 0; row < item.all_rows(); row++)
        write_output<Kind>(work, item, row, state.sum + row * work.sizes.row, state.largest[row],
                           state.total[row]);
}

// Merges the partial output of other keys into `all`.
void merge_state(const State& all, const State& part, long num_rows, const Sizes& sizes) {
    for (long r = 0; r < num_rows; r++) {
        float most = std::max(all.largest[r], part.largest[r]);
        float one = rescalings(set1(all.largest[r]), set1(most))[0];
        float other = rescalings(set1(part.largest[r]), set1(most))[0];
        float *out = all.sum + r * sizes.row, *in = part.sum + r * sizes.row;
        for (long i = 0; i < sizes.row; i++) out[i] = std::fma(out[i], one, in[i] * other);
        all.total[r] = std::fma(all.total[r], one, part.total[r] * other);
        all.largest[r] = most;
    }
}

template <class Kind>
void attend_piece(const Work& work, const Pieces& pieces, long piece, long thread) {
    const Heads& heads = work.heads;
    const Sizes& sizes = work.sizes;
    Scratch scratch(heads.scratch + thread * sizes.thread_floats(), sizes);
    auto attend = [&](const Item& part, const Item& whole, const Item* following) {
        bool is_whole = part.begin == whole.begin && part.end == whole.end;
        State state = is_whole ? scratch.state
                               : partial_state(heads.scratch, sizes, heads.threads, piece,
                                               part.begin == whole.begin);
        state.clear(rounded_up(part.all_rows(), TILE_ROWS), sizes.row);
        if (part.is_few)
            Few<Kind>(work, scratch, state, part, following).attend();
        else
            Many<Kind>(work, scratch, state, part).attend();
        if (is_whole) write_outputs<Kind>(work, part, state);
    };
    bool has_part = false;
    Item part, whole;
    work.walk(pieces.begin(piece), pieces.begin(piece + 1),
              [&](const Item& next_part, const Item& next_whole) {
                  if (has_part) attend(part, whole, next_part.is_few ? &next_part : nullptr);
                  has_part = true, part = next_part, whole = next_whole;
                  return true;
              });
    if (has_part) attend(part, whole, nullptr);
}

// Merges the item that is cut at the end of a piece, if it began in that piece.
template <class Kind>
void merge_from(const Work& work, const Pieces& pieces, long piece) {
    const Heads& heads = work.heads;
    bool is_cut = false;
    Item cut;
    work.walk(pieces.begin(piece), pieces.begin(piece + 1),
              [&](const Item& part, const Item& whole) {
                  is_cut = part.begin == whole.begin && part.end < whole.end;
                  cut = part;
                  return true;
              });
    if (!is_cut) return;
    auto state_of = [&](long index, bool goes_on) {
        return partial_state(heads.scratch, work.sizes, heads.threads, index, goes_on);
    };
    State all = state_of(piece, true);
    for (bool is_done = false; !is_done;) {
        piece++;
        work.walk(pieces.begin(piece), pieces.begin(piece + 1),
                  [&](const Item& part, const Item& whole) {
                      merge_state(all, state_of(piece, false), part.all_rows(), work.sizes);
                      is_done = part.end == whole.end;
                      return false;
                  });
    }
    write_outputs<Kind>(work, cut, all);
}

template <class Kind>
void run(const Work& work, const Rotary* rotary) {
    const Heads& heads = work.heads;
    const Sizes& sizes = work.sizes;
    const Pages<Kind> pages(work);
    long num_tokens = work.step.query_start[work.step.num_requests];
    long num_written = 2 * heads.num_kv_heads + (rotary ? heads.num_heads : 0);
    long total = work.sum_costs(), rows = num_tokens * num_written;
    if (!num_tokens) return;
    long threads = std::min(heads.threads, std::max(1L, total / PIECE_COST));
    long count = std::min(threads * PIECES, std::max(1L, total / PIECE_COST));
    Pieces pieces = {total, threads == 1 ? 1 : count};
    long writers = std::min(heads.threads, std::max(1L, rows / WRITTEN_ROWS));
    in_parts(writers, [&](long thread, long of) {
        float* scratch = heads.scratch + thread * sizes.thread_floats();
        for (long i = rows * thread / of; i < rows * (thread + 1) / of; i++)
            if (rotary)
                turn_row(work, pages, *rotary, scratch, i / num_written, i % num_written);
            else
                write_row(work, pages, i / num_written, i % num_written);
    });
    std::atomic<long> next{0};
    in_parts(threads, [&](long thread, long) {
        for (long piece; (piece = next.fetch_add(1)) < pieces.count;)
            attend_piece<Kind>(work, pieces, piece, thread);
    });
    // Merging few rows takes less time than waking another thread.
    long mergers = num_tokens == work.step.num_requests ? 1 : threads;
    if (pieces.count > 1)
        share_evenly(pieces.count, mergers,
                     [&](long piece) { merge_from<Kind>(work, pieces, piece); });
}

enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT8, INT8, BFLOAT16_PAIRS };

void run_kind(const Work& work, const Rotary* rotary) {
    switch (work.heads.kind) {
    case FLOAT32: return run<Float32>(work, rotary);
    case BFLOAT16: return run<BFloat16>(work, rotary);
    case FLOAT16: return run<Float16>(work, rotary);
    case FLOAT8: return run<Float8>(work, rotary);
    case INT8: return run<Int8>(work, rotary);
#if defined(QUIRE_PAIRS)
    case BFLOAT16_PAIRS: return run<BFloat16Pairs>(work, rotary);
#else
    case BFLOAT16_PAIRS: return run<BFloat16>(work, rotary);
#endif
    }
}

}  // namespace

// Returns the size of `Heads::scratch` in float32 elements.
EXPORT void attention_scratch(const Heads* heads, int64_t* size) {
    *size = Sizes(heads->head_dim).floats(heads->threads);
}

EXPORT void attend(const Heads* heads, const Layer* layer, const Step* step, float* q,
                   int64_t q_stride, const float* k, int64_t k_stride, const float* v,
                   int64_t v_stride, float* out) {
    Inputs inputs = {q, k, v, q_stride, k_stride, v_stride, out};
    run_kind(Work(*heads, *layer, *step, inputs), nullptr);
}

// The same from projected heads [T, H + 2 K, D], with norm and rotation; q is rotated in place.
EXPORT void turn_and_attend(const Heads* heads, const Layer* layer, const Step* step, float* qkv,
                            const float* table, const int64_t* positions, const float* norm_weight,
                            float norm_eps, float* out) {
    int64_t D = heads->head_dim, stride = (heads->num_heads + 2 * heads->num_kv_heads) * D;
    float *k = qkv + heads->num_heads * D, *v = k + heads->num_kv_heads * D;
    Inputs inputs = {qkv, k, v, stride, stride, stride, out};
    Rotary rotary = {table, positions, norm_weight, norm_eps};
    run_kind(Work(*heads, *layer, *step, inputs), &rotary);
}
