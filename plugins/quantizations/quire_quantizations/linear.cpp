// Product of float32 rows and a packed weight. The result of a row does not depend on the batch.
//
// Each output is one lane of one accumulator. Its products are added in the order of the inputs, in
// groups that are multiplied by their scale at their end. So neither the number and order of rows,
// nor the number of threads, nor the split of the work changes a bit.
//
// Codes are decoded in registers, again for each tile of rows: processors have units for that
// beside those that multiply, and storing decoded values was slower. The part of the weight that
// several tiles use stays in the L1 cache, their rows of x in the L2 cache.
#include <cstdlib>
#include <memory>
#include <vector>

#include "amx_products.h"
#include "code_formats.h"
#include "export.h"
#include "integer_formats.h"
#include "linear_formats.h"
#include "linear_packing.h"
#include "linear_tile.h"
#include "threads.h"

// A weight, described by the caller.
struct Weight {
    int64_t format;    // of the packed weight: of `with_format`, or of codes
    int64_t products;  // 0 of float32, 1 of the format's own numbers, 2 by fused instructions, 3 by AMX
    const uint8_t* packed;
    int64_t inputs, outputs;
    int64_t threads;
    const int32_t* order;  // of formats with an order: the input of x of each input; null: as in x
};

// The weights of several experts, all of one shape and format.
struct ExpertWeights {
    int64_t format, products, inputs, outputs, experts;
    const uint8_t* const* packed;  // [experts]
    const float* const* biases;    // [experts]; null: no biases
    int64_t threads;
    const int32_t* const* orders;  // [experts]; null: all inputs are as in x
};

namespace {

constexpr int FEW_ROWS = 4;                    // take as long as the weight takes to be read
constexpr long CHUNK = 16;                     // consecutive inputs of a row of x in memory
constexpr long CACHED_ELEMENTS = 64 * 1024;    // of x in the L2 cache: panels are read whole
constexpr long SHORT = 2 * BLOCK;              // largest number of inputs per block, for more of x
constexpr long SHORT_ELEMENTS = 96 * 1024;     // of x in the L2 cache for such blocks
constexpr long TILES_OF_A_THREAD = 8;          // with so many tiles per thread, threads split rows
constexpr long PREFETCH_DISTANCE = 8 * 1024;  // bytes in a panel
constexpr long PACKED_BYTES = 64 * 1024;       // bytes of a panel that all tiles read in turn
constexpr long SPAN_BYTES = 64 * 1024;         // least work of a thread
constexpr long SPAN_PRODUCTS = 256 * 1024;

// Inputs of a row: a vector of them, with zeros from `known` on.
template <class F>
INLINE vf take_inputs(F, const float* from, long known) {
#if defined(QUIRE_PAIRS)
    if constexpr (F::SLOT == 2)
        return F::paired(load_some(from, known), load_some(from + LANES, known - LANES));
#endif
    return load_some(from, known);
}

// acc += the products of one input. The smaller operand stays in registers: x or a column.
template <class Codes, int ROWS>
INLINE void add_one(
    typename Codes::Sum (&acc)[ROWS][TILE_VECTORS],
    const float* a,
    typename Codes::Words (&words)[TILE_VECTORS],
    int j
) {
    typedef typename Codes::Sum Vector;
    if constexpr (ROWS < TILE_VECTORS) {
        Vector value[ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) value[r] = Codes::broadcast(a + r * CHUNK);
#pragma GCC unroll 16
        for (int v = 0; v < TILE_VECTORS; v++) {
            Vector column = Codes::value(words[v], j);
#pragma GCC unroll 16
            for (int r = 0; r < ROWS; r++)
                acc[r][v] = add_product(Codes(), value[r], column, acc[r][v]);
        }
    } else {
        Vector column[TILE_VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < TILE_VECTORS; v++) column[v] = Codes::value(words[v], j);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            Vector value = Codes::broadcast(a + r * CHUNK);
#pragma GCC unroll 16
            for (int v = 0; v < TILE_VECTORS; v++)
                acc[r][v] = add_product(Codes(), value, column[v], acc[r][v]);
        }
    }
}

// Cache that words are prefetched into: 3 is L1, and 2 is L2. Bytes of one or two rows are multiplied
// by fused instructions faster than memory can be read into L1, which has fewer reads under way.
template <class Codes, int ROWS>
constexpr int level_of_prefetch() {
    return Codes::IS_INTEGER && Codes::STEP == 1 && ROWS <= 2 ? 2 : 3;
}

// acc += the products of `size` inputs, in their order.
template <class Codes, int ROWS>
INLINE void add_products(
    typename Codes::Sum (&acc)[ROWS][TILE_VECTORS],
    const Tile& tile,
    const uint8_t* codes,
    long begin,
    long size
) {
    typedef Layout<Codes> At;
    static_assert(Codes::GROUP % CHUNK == 0 || CHUNK % Codes::GROUP == 0, "");
    constexpr int LEVEL = level_of_prefetch<Codes, ROWS>();
    const float* a = tile.a + begin / CHUNK * CHUNK * ROWS + begin % CHUNK;
    for (long k = 0; k < size; k += CHUNK, a += CHUNK * ROWS) {
        long count = size - k < CHUNK ? size - k : CHUNK;
        for (long i = 0; i < count; i += Codes::STEP, codes += At::STEP_BYTES) {
            if (tile.next)  // line by line: many prefetches at once would wait for each other
                for (long line = 0; line < At::STEP_BYTES; line += LINE)
                    __builtin_prefetch(codes + tile.next + line, 0, LEVEL);
            typename Codes::Words words[TILE_VECTORS];
#pragma GCC unroll 16
            for (int v = 0; v < TILE_VECTORS; v++)
                words[v] = Codes::load_codes(codes + v * At::VECTOR_BYTES);
#pragma GCC unroll 8
            for (int j = 0; j < Codes::STEP; j++) add_one<Codes>(acc, a + i + j, words, j);
        }
    }
}

template <class F, int ROWS>
struct Product {
    static constexpr int VECTORS = TILE_VECTORS;
    typedef vf Totals[ROWS][VECTORS];

    static void run(const Tile& tile) {
        vf total[ROWS][VECTORS];
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++) total[r][v] = load_total(tile, r, v);
        const uint8_t* group = tile.packed;
        for (long k = 0; k < tile.size; k += F::GROUP, group += Layout<F>::GROUP_BYTES)
            add_group(total, tile, group, k);
        finish(total, tile);
    }

    INLINE void add_group(Totals& total, const Tile& tile, const uint8_t* group, long k) {
        long rest = tile.size - k, size = rest < F::GROUP ? rest : F::GROUP;
        const uint8_t* codes = group + Layout<F>::SCALE_BYTES;
        if constexpr (F::IS_INTEGER) {
            const InputGroup* groups = tile.groups + k / F::GROUP * ROWS;
            vi acc[ROWS][VECTORS];
            for (int r = 0; r < ROWS; r++)
                for (int v = 0; v < VECTORS; v++) acc[r][v] = set1i(groups[r].correction);
            add_products<F, ROWS>(acc, tile, codes, k, size);
            for (int v = 0; v < VECTORS; v++) {
                const vf scale = scales_of(group, v);
                for (int r = 0; r < ROWS; r++) {
                    const vf product = to_float(acc[r][v]) * scale;
                    total[r][v] = fma(product, set1(groups[r].scale), total[r][v]);
                }
            }
            if constexpr (F::HAS_OFFSETS) add_offsets(total, tile, (const float*)group + PANEL, k);
        } else if constexpr (F::SCALED) {
            vf acc[ROWS][VECTORS] = {};
            add_products<F, ROWS>(acc, tile, codes, k, size);
            for (int v = 0; v < VECTORS; v++) {
                const vf scale = scales_of(group, v);
                for (int r = 0; r < ROWS; r++) total[r][v] = fma(scale, acc[r][v], total[r][v]);
            }
            if constexpr (F::HAS_OFFSETS) add_offsets(total, tile, (const float*)group + PANEL, k);
        } else {
            add_products<F, ROWS>(total, tile, codes, k, size);
        }
    }

    // Adds the products of a group's offsets and the sums of its inputs.
    INLINE void add_offsets(Totals& total, const Tile& tile, const float* offsets, long k) {
        const InputGroup* sums = tile.groups + k / F::GROUP * ROWS;
        for (int v = 0; v < VECTORS; v++) {
            const vf offset = load(offsets + v * LANES);
            for (int r = 0; r < ROWS; r++)
                total[r][v] = fma(offset, set1(sums[r].sum), total[r][v]);
        }
    }

    INLINE vf scales_of(const uint8_t* group, int v) {
        if constexpr (F::SCALE_WIDTH > 2) return load((const float*)group + v * LANES);
        return load_bf16((const uint16_t*)group + v * LANES);
    }

    INLINE void finish(Totals& total, const Tile& tile) {
        for (int v = 0; v < VECTORS; v++) {
            const vf bias = load_bias(tile, v);
            for (int r = 0; r < ROWS; r++)
                store_total(tile, r, v, tile.bias ? total[r][v] + bias : total[r][v]);
        }
    }
};

template <class F, int ROWS = TILE_ROWS>
Kernel kernel_for(long rows) {
    if constexpr (IN_MATRICES<F>) return matrix_kernel<F>(rows);
    if (rows == ROWS) return Product<F, ROWS>::run;
    if constexpr (ROWS > 1) return kernel_for<F, ROWS - 1>(rows);
    return nullptr;
}

// Scratch memory of the calling thread; it only grows.
float* scratch(long elements) {
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    static thread_local std::unique_ptr<float, Free> memory;
    static thread_local long size = 0;
    if (size < elements) {
        long bytes = round_up(elements * 4, ALIGNMENT);
        memory.reset((float*)std::aligned_alloc(ALIGNMENT, bytes));
        if (!memory) std::abort();  // no memory for a megabyte: nothing else would work either
        size = elements;
    }
    return memory.get();
}

// The same for the inputs of one row.
float* ordered_row(long elements) {
    static thread_local std::vector<float> memory;
    if ((long)memory.size() < elements) memory.resize(elements);
    return memory.data();
}

struct Range {
    long begin, end;
};
Range part_of(long count, long part, long parts) {
    return {count * part / parts, count * (part + 1) / parts};
}

template <class F>
struct Linear {
    const uint8_t* packed;
    long inputs, outputs;
    const float* x;
    const float* bias;
    float* out;
    long rows;
    long threads;  // at most
    const int32_t* order = nullptr;

    long slots = divided(inputs, F::SLOT);  // of a row of x; the unit of `k` below
    long padded = round_up(slots, F::STEP);
    long panel_bytes = Layout<F>::panel_bytes(slots);
    long panels = divided(outputs, PANEL);
    long height = height_of_tiles();
    long tiles = divided(rows, height);
    bool splits_rows = tiles >= threads * TILES_OF_A_THREAD;  // otherwise panels

    // Almost equal, since lower tiles are slower; with AMX only their number counts.
    long height_of_tiles() const {
        if (!IN_MATRICES<F>) return divided(rows, divided(rows, (long)TILE_ROWS));
        return rows < MATRIX_TILE_ROWS ? rows : MATRIX_TILE_ROWS;
    }

    long useful_threads() const {
        long spans = panels * panel_bytes / SPAN_BYTES + rows * inputs * outputs / SPAN_PRODUCTS;
        long shared = splits_rows ? tiles : panels, most = spans < shared ? spans : shared;
        return threads < most ? threads : most < 1 ? 1 : most;
    }

    Tile tile(long panel, long row, long k, long size) const {
        Tile tile = {};
        tile.packed = packed + panel * panel_bytes + k / F::GROUP * Layout<F>::GROUP_BYTES;
        tile.size = size;
        tile.next = PREFETCH_DISTANCE;
        tile.out = out + row * outputs + panel * PANEL;
        tile.out_row = outputs;
        tile.columns = outputs - panel * PANEL;
        tile.continues = k > 0;
        bool is_last = k + size >= padded;
        tile.bias = bias && is_last ? bias + panel * PANEL : nullptr;
        return tile;
    }

    // Copy rows of x to the layout of tiles: [chunks, rows of the tile, CHUNK] for each tile, with
    // tiles `stride` inputs long; zeros after the last input. For integers, and for weights with
    // offsets, the groups of inputs of each tile follow behind all tiles: [groups, rows of the tile].
    void arrange(float* to, Range some, long k, long size, long stride) const {
        long known = inputs - k * F::SLOT;
        InputGroup* groups = groups_behind(to, some, stride);
        for (long first = some.begin; first < some.end; first += height, to += height * stride) {
            long rest = some.end - first, count = rest < height ? rest : height;
            for (long r = 0; r < count; r++) {
                const float* from = x + (first + r) * inputs + k * F::SLOT;
                if constexpr (F::HAS_ORDER)
                    from = in_order(from - k * F::SLOT, k * F::SLOT, size * F::SLOT);
                if constexpr (F::IS_INTEGER)
                    arrange_codes(to + r * CHUNK, groups + r, count, from, known, size);
                else
                    for (long i = 0; i < size; i += LANES)
                        store(
                            to + (i / CHUNK * count + r) * CHUNK + i % CHUNK,
                            take_inputs(F(), from + i * F::SLOT, known - i * F::SLOT)
                        );
                if constexpr (F::HAS_OFFSETS && !F::IS_INTEGER)
                    sum_groups(groups + r, count, from, known, size);
            }
            groups += height * groups_of(stride);
        }
    }

    // Quantizes one of `count` rows of a tile.
    static void arrange_codes(
        float* to, InputGroup* groups, long count, const float* from, long known, long size
    ) {
        for (long k = 0; k < size; k += F::GROUP, groups += count) {
            int8_t codes[F::GROUP * F::SLOT];
            *groups = quantize_inputs(F(), codes, from + k * F::SLOT, known - k * F::SLOT);
            constexpr long PIECE = F::GROUP < CHUNK ? F::GROUP : CHUNK;
            const long end = size - k < F::GROUP ? size - k : F::GROUP;
            for (long i = 0; i < end; i += PIECE)
                F::template write_elements<PIECE>(
                    to + (k + i) / CHUNK * count * CHUNK + (k + i) % CHUNK, codes + i * F::SLOT
                );
        }
    }

    // Inputs of a row from input k on, in the order of the weight.
    const float* in_order(const float* row, long k, long size) const {
        if (!order) return row + k;
        float* to = ordered_row(size);
        for (long i = 0; i < size && k + i < inputs; i++) to[i] = row[order[k + i]];
        return to;
    }

    // Sums the inputs of each group of one of `count` rows of a tile.
    static void sum_groups(InputGroup* groups, long count, const float* from, long known, long size) {
        constexpr long INPUTS = F::GROUP * F::SLOT;
        for (long k = 0; k < size * F::SLOT; k += INPUTS, groups += count) {
            vf sums = zero();
            for (long i = k; i < k + INPUTS && i < known; i += LANES)
                sums = sums + F::rounded(load_some(from + i, known - i));
            float sum = 0.0f;
            for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
            *groups = {0.0f, 0, sum};
        }
    }

    static long groups_of(long stride) {
        return F::IS_INTEGER || F::HAS_OFFSETS ? divided(stride, F::GROUP) : 0;
    }
    static InputGroup* groups_behind(const float* a, Range some, long stride) {
        return (InputGroup*)(a + (some.end - some.begin) * stride);
    }
    // Memory for rows that are `stride` inputs long, and for their groups.
    static float* memory_for(long count, long stride) {
        const long bytes = groups_of(stride) * (long)sizeof(InputGroup);
        return scratch(count * (stride + bytes / (long)sizeof(float)) + ELEMENTS_BEHIND<F>);
    }

    // One block of one panel is read by all rows, while it is in a cache. If all of x fits in the L2 cache,
    // each panel is read to its end; otherwise all panels of one block of inputs.
    void panels_of_rows(Range mine, Range these) const {
        const MatrixUse<F> use;
        long count = these.end - these.begin, stride = round_up(padded, CHUNK);
        if (count * stride > CACHED_ELEMENTS) return blockwise(mine, these);
        float* a = memory_for(count, stride);
        arrange(a, these, 0, padded, stride);
        long step = PACKED_BYTES / Layout<F>::STEP_BYTES * F::STEP;
        for (long panel = mine.begin; panel < mine.end; panel++)
            for (long k = 0; k < padded || k == 0; k += step) {
                long size = padded - k < step ? padded - k : step;
                block(a, tile(panel, these.begin, k, size), these, stride, k);
            }
    }

    void blockwise(Range mine, Range these) const {
        constexpr long NEAR = PACKED_BYTES / Layout<F>::STEP_BYTES * F::STEP;
        constexpr long size_of_block = NEAR < SHORT ? NEAR : SHORT;
        static_assert(size_of_block % F::GROUP == 0, "");
        long rows_at_a_time = SHORT_ELEMENTS / size_of_block / height * height;
        float* a = memory_for(rows_at_a_time, size_of_block);
        for (long row = these.begin; row < these.end; row += rows_at_a_time) {
            long end = row + rows_at_a_time;
            Range some = {row, end < these.end ? end : these.end};
            for (long k = 0; k < padded; k += size_of_block) {
                long size = padded - k < size_of_block ? padded - k : size_of_block;
                arrange(a, some, k, size, size_of_block);
                for (long panel = mine.begin; panel < mine.end; panel++) {
                    Tile first = tile(panel, row, k, size);
                    first.next = panel_bytes;
                    block(a, first, some, size_of_block, 0);
                }
            }
        }
    }

    // All tiles of some rows with one block of a panel, whose inputs begin at `begin` in `a`.
    void block(const float* a, Tile next, Range some, long stride, long begin) const {
        long count = some.end - some.begin, rest = count % height;
        Kernel whole = kernel_for<F>(height), last = kernel_for<F>(rest);
        const InputGroup* groups = groups_behind(a, some, stride);
        for (long done = 0; done < count; done += height) {
            bool is_whole = count - done >= height;
            const long tile_rows = is_whole ? height : rest;
            next.a = a + done * stride + begin * tile_rows;
            next.rows = tile_rows;
            next.groups = groups + done * groups_of(stride) + begin / F::GROUP * tile_rows;
            (is_whole ? whole : last)(next);
            next.out += height * outputs;
            next.next = 0;
        }
    }

    void run() const {
        in_parts(useful_threads(), [&](long part, long parts) {
            Range mine = {0, panels}, these = {0, rows};
            if (splits_rows) {
                these = part_of(tiles, part, parts);
                these = {these.begin * height, these.end * height};
                if (these.end > rows) these.end = rows;
            } else {
                mine = part_of(panels, part, parts);
            }
            panels_of_rows(mine, these);
        });
    }
};

// Products of rows that are sorted by expert, [rows, inputs]: those of expert e end at ends[e].
template <class F>
struct GroupedLinear {
    const ExpertWeights& of;
    const float* x;
    const int64_t* ends;
    float* out;

    long panels = divided(of.outputs, PANEL);

    // One expert's rows by themselves.
    Linear<F> expert(long e) const {
        const long start = e ? ends[e - 1] : 0;
        const float* bias = of.biases ? of.biases[e] : nullptr;
        const float* from = x + start * of.inputs;
        float* to = out + start * of.outputs;
        const int32_t* order = of.orders ? of.orders[e] : nullptr;
        return {of.packed[e], of.inputs, of.outputs, from, bias, to, count(e), 1, order};
    }

    long count(long e) const { return ends[e] - (e ? ends[e - 1] : 0); }

    // Cost of one panel of an expert: few rows take as long as its bytes take to be read.
    long cost(long e) const {
        const long rows = count(e);
        return rows && rows < FEW_ROWS ? FEW_ROWS : rows;
    }

    long useful_threads(long total) const {
        const long bytes = Layout<F>::panel_bytes(divided(of.inputs, F::SLOT));
        const long spans = total * (bytes / FEW_ROWS) / SPAN_BYTES + total * of.inputs * PANEL / SPAN_PRODUCTS;
        return of.threads < spans ? of.threads : spans < 1 ? 1 : spans;
    }

    // Divides the panels of all experts by their cost.
    void run() const {
        long total = 0;
        for (long e = 0; e < of.experts; e++) total += cost(e) * panels;
        if (!total) return;
        in_parts(useful_threads(total), [&](long part, long parts) {
            const long begin = total * part / parts, end = total * (part + 1) / parts;
            long before = 0;  // cost of the experts before
            for (long e = 0; e < of.experts && before < end; e++) {
                const long one = cost(e);
                if (!one) continue;
                Range mine = {first_from(begin - before, one), first_from(end - before, one)};
                before += one * panels;
                if (mine.begin < mine.end) expert(e).panels_of_rows(mine, {0, count(e)});
            }
        });
    }

    // First panel that begins at a cost or later.
    long first_from(long at, long one) const {
        if (at <= 0) return 0;
        const long panel = divided(at, one);
        return panel < panels ? panel : panels;
    }
};

#if defined(QUIRE_CODES)
template <class Work>
void with_format(int64_t format, const Work& work) {
    with_codes(format, work);
}

// Calls work with the format of codes as the products of this library read it.
template <class Work>
void with_products(int64_t format, int64_t, const Work& work) {
    with_codes(format, [&](auto codes) {
        typedef decltype(codes) Stored;
#if defined(QUIRE_CODES_AS_INTEGERS) || defined(QUIRE_CODES_AS_FUSED_INTEGERS)
        if constexpr (Stored::HAS_INTEGERS) work(Integers<Stored, ARE_FUSED>());
#elif defined(QUIRE_CODES_AS_PAIRS) && defined(QUIRE_PAIRS)
        work(CodePairs<Stored>());
#else
        work(codes);
#endif
    });
}
#else
// Calls work with the format of packed weights.
template <class Work>
void with_format(int64_t format, const Work& work) {
    switch (format) {
        case 0: return work(Float32());
        case 1: return work(BFloat16());
        case 2: return work(Int8());
        case 3: return work(Int4());
        case 4: return work(Float16());
    }
}

// Calls work with the format as its products read it.
template <class Work>
void with_products(int64_t format, int64_t products, const Work& work) {
#if defined(QUIRE_MATRICES)
    if (products == 3) switch (format) {
        case 1: return work(InMatrices<BFloat16Pairs>());
        case 2: return work(InMatrices<Integers<Int8, true>>());
    }
#endif
    if (products) switch (format) {
#if defined(QUIRE_PAIRS)
        case 1: return work(BFloat16Pairs());
#endif
#if defined(QUIRE_FUSED_BYTES)
        case 2: return products > 1 ? work(Integers<Int8, true>()) : work(Integers<Int8, false>());
        case 3: return products > 1 ? work(Integers<Int4, true>()) : work(Integers<Int4, false>());
#else
        case 2: return work(Integers<Int8, false>());
        case 3: return work(Integers<Int4, false>());
#endif
    }
    with_format(format, work);
}
#endif

#if defined(QUIRE_MATRICES)
// Whether AMX gives the products of AVX-512 on this processor, within `tolerance` of the largest:
// its kernels have been tested in an emulator only.
template <class Stored, class Words>
bool gives_equal_products(float tolerance) {
    constexpr long INPUTS = 300, OUTPUTS = 70, ROWS = 37, PANELS = (OUTPUTS + PANEL - 1) / PANEL;
    struct alignas(ALIGNMENT) Memory {
        uint8_t packed[PANELS * (INPUTS + BLOCK) * PANEL * 4];
        float weight[OUTPUTS * INPUTS], x[ROWS * INPUTS], known[ROWS * OUTPUTS], out[ROWS * OUTPUTS];
    };
    const auto memory = std::make_unique<Memory>();
    uint32_t state = 1;
    const auto fill = [&](float* to, long count) {
        for (long i = 0; i < count; i++) {
            state = state * 1664525u + 1013904223u;
            to[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
        }
    };
    fill(memory->weight, OUTPUTS * INPUTS);
    fill(memory->x, ROWS * INPUTS);
    const DenseSlice all = {memory->weight, OUTPUTS, INPUTS};
    const Dense dense = {&all, NumberType::FLOAT32, INPUTS, OUTPUTS};
    pack_panels<Stored>(memory->packed, dense, 1);
    const uint8_t* packed = memory->packed;
    const float *x = memory->x, *bias = nullptr;
    Linear<Words>{packed, INPUTS, OUTPUTS, x, bias, memory->known, ROWS, 1}.run();
    Linear<InMatrices<Words>>{packed, INPUTS, OUTPUTS, x, bias, memory->out, ROWS, 1}.run();
    float largest = 0.0f, furthest = 0.0f;
    for (long i = 0; i < ROWS * OUTPUTS; i++) {
        largest = std::fmax(largest, std::fabs(memory->known[i]));
        const float distance = std::fabs(memory->known[i] - memory->out[i]);
        furthest = distance == distance ? std::fmax(furthest, distance) : INFINITY;
    }
    return furthest <= tolerance * largest;
}
#endif

}  // namespace

// status[0] = 0 if products of the kind 3 may be used from now on, by any thread; otherwise the
// system's error number, -1 if they were not compiled, or -2 if they are wrong.
EXPORT void request_matrices(int64_t* status) {
#if defined(QUIRE_MATRICES)
    static const int64_t found = [] {
        if (const int64_t refused = matrices::request()) return refused;
        const bool are_right = gives_equal_products<Int8, Integers<Int8, true>>(0.0f) &&
                               gives_equal_products<BFloat16, BFloat16Pairs>(1e-5f);
        return are_right ? (int64_t)0 : (int64_t)-2;
    }();
    *status = found;
#else
    *status = -1;
#endif
}

// out[r] = x[r] @ weight.T + bias; x is [rows, inputs], out [rows, outputs], both without gaps.
EXPORT void linear(
    const Weight* weight, const float* x, const float* bias, float* out, int64_t rows
) {
    if (!rows || !weight->outputs) return;
    const long inputs = weight->inputs, outputs = weight->outputs, threads = weight->threads;
    with_products(weight->format, weight->products, [&](auto format) {
        typedef decltype(format) F;
        const int32_t* order = weight->order;
        Linear<F>{weight->packed, inputs, outputs, x, bias, out, rows, threads, order}.run();
    });
}

// The same for rows sorted by expert, each with the weight and bias of its expert. Rows from the last
// of `ends` on are not written.
EXPORT void grouped_linear(
    const ExpertWeights* weights, const float* x, const int64_t* ends, float* out
) {
    if (!weights->outputs) return;
    with_products(weights->format, weights->products, [&](auto format) {
        GroupedLinear<decltype(format)>{*weights, x, ends, out}.run();
    });
}

// bytes[0] = size of the packed weight.
EXPORT void packed_bytes(const Weight* weight, int64_t* bytes) {
    with_format(weight->format, [&](auto format) {
        *bytes = divided(weight->outputs, PANEL) * Layout<decltype(format)>::panel_bytes(weight->inputs);
    });
}

#if defined(QUIRE_CODES)
// Packs the codes of a quantized weight into `packed`.
EXPORT void pack_codes(const Weight* weight, const CodedWeight* from, uint8_t* packed) {
    with_codes(weight->format, [&](auto format) {
        pack_codes_of<decltype(format)>(
            packed, *from, weight->inputs, weight->outputs, weight->threads
        );
    });
}
#else
// Packs a dense [outputs, inputs] weight of a `NumberType` into `packed`.
EXPORT void pack(const Weight* weight, const DenseSlice* slices, int64_t type, uint8_t* packed) {
    const Dense from = {slices, (NumberType)type, (long)weight->inputs, (long)weight->outputs};
    with_format(weight->format, [&](auto format) {
        pack_panels<decltype(format)>(packed, from, weight->threads);
    });
}
#endif

// out[i] = row ids[i] of the weight, [count, inputs]. If there is no such row, only wrong[0] = i is
// written.
EXPORT void rows(
    const Weight* weight, const int64_t* ids, int64_t count, float* out, int64_t* wrong
) {
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= weight->outputs) {
            *wrong = i;
            return;
        }
    with_format(weight->format, [&](auto format) {
        read_rows<decltype(format)>(
            out, weight->packed, weight->order, weight->inputs, ids, count, weight->threads
        );
    });
}
