// Rows of K and V in their pages: writing of new rows, and lookup of rows by position.
#pragma once

#include "attention_products.h"
#include "attention_work.h"

// Addresses of rows in the pages; side 0 is K, side 1 is V.
template <class Kind>
struct Pages {
    typedef typename Kind::Element Element;
    uint8_t* pages;
    long page_bytes, num_kv_heads, block_size, D;

    explicit Pages(const Work& work)
        : pages(work.layer.pages), page_bytes(work.layer.page_bytes),
          num_kv_heads(work.heads.num_kv_heads), block_size(work.heads.block_size),
          D(work.heads.head_dim) {}
    long row(long side, long head) const { return (side * num_kv_heads + head) * block_size; }
    Element* elements(long block, long row) const {
        return reinterpret_cast<Element*>(pages + block * page_bytes) + row * D;
    }
    float* scale(long block, long row) const {
        uint8_t* behind = pages + block * page_bytes + 2 * num_kv_heads * block_size * D;
        return reinterpret_cast<float*>(behind) + row;
    }
    void write(long side, long head, long slot, const float* x, float layer_scale) const {
        long at = row(side, head) + slot % block_size, block = slot / block_size;
        float of_row = Kind::convert(elements(block, at), x, D, layer_scale);
        if (Kind::HAS_ROW_SCALES) *scale(block, at) = of_row;
    }
};

// The rows of a range of keys. Rows shorter than a slot of products are copied and padded with
// zeros.
template <class Kind>
struct Rows {
    typedef typename Kind::Element Element;
    static constexpr long SLOT = Products<Kind>::SLOT;
    const Element* elements[MANY_KEYS];
    float scales[MANY_KEYS];  // if rows have scales
    Element copies[MANY_KEYS][SLOT];

    void find(const Pages<Kind>& pages, const int32_t* table, long side, long head, long first,
              long count) {
        long row = pages.row(side, head), offset = first % pages.block_size;
        const int32_t* block = table + first / pages.block_size;
        for (long at = 0; at < count; block++, offset = 0) {
            long run = std::min(pages.block_size - offset, count - at);
            const Element* start = pages.elements(*block, row + offset);
            for (long i = 0; i < run; i++) elements[at + i] = start + i * pages.D;
            if (Kind::HAS_ROW_SCALES)
                std::memcpy(scales + at, pages.scale(*block, row + offset), run * sizeof *scales);
            at += run;
        }
        if (pages.D < SLOT) copy(pages.D, count);
    }

private:
    void copy(long D, long count) {
        for (long i = 0; i < count; i++) {
            std::fill(copies[i], copies[i] + SLOT, Element());
            std::memcpy(copies[i], elements[i], D * sizeof(Element));
            elements[i] = copies[i];
        }
    }
};

// Divides a row by its root mean square, multiplies it by its weight, and rotates it by its token's
// angles. `normed` is scratch memory of one row; the rows must not overlap.
inline void turn(float* out, float* normed, const float* x, long D, const float* angles,
                 const float* weight, float eps) {
    if (weight) {
        vf squares = zero();
        long whole = D / LANES * LANES;
        for (long i = 0; i < whole; i += LANES) squares = fma(load(x + i), load(x + i), squares);
        float last[LANES] = {};
        for (long i = whole; i < D; i++) last[i - whole] = x[i];
        squares = fma(load(last), load(last), squares);
        float length = 1.0f / std::sqrt(sum(squares) / (float)D + eps);
        for (long i = 0; i < D; i++) normed[i] = x[i] * length * weight[i];
        x = normed;
    }
    const float *cosines = angles, *sines = angles + D;
    long half = D / 2;
    for (long i = 0; i < half; i++) out[i] = std::fma(x[i + half], sines[i], x[i] * cosines[i]);
    for (long i = half; i < D; i++) out[i] = std::fma(x[i - half], sines[i], x[i] * cosines[i]);
}

// Writes row `row` of a token's rows of K and V, without rotation.
template <class Kind>
void write_row(const Work& work, const Pages<Kind>& pages, long token, long row) {
    long side = row / pages.num_kv_heads, head = row % pages.num_kv_heads;
    const Inputs& in = work.inputs;
    const float* x = side ? in.v + token * in.v_stride : in.k + token * in.k_stride;
    float scale = side ? work.layer.v_scale : work.layer.k_scale;
    pages.write(side, head, work.step.slots[token], x + head * pages.D, scale);
}

// Norms and rotates a row of q or K, or writes a row of V. Rows are numbered q, K, V; q is updated
// in place.
template <class Kind>
void turn_row(const Work& work, const Pages<Kind>& pages, const Rotary& rotary, float* scratch,
              long token, long row) {
    long num_heads = work.heads.num_heads, D = pages.D;
    if (row >= num_heads + pages.num_kv_heads)
        return write_row(work, pages, token, row - num_heads);
    const Inputs& in = work.inputs;
    float *q = in.q + token * in.q_stride + row * D, *turned = scratch;
    const float* x = row < num_heads ? q : in.k + token * in.k_stride + (row - num_heads) * D;
    const float* weight = rotary.norm_weight ? rotary.norm_weight + row * D : nullptr;
    const float* angles = rotary.table + rotary.positions[token] * 2 * D;
    turn(turned, scratch + D, x, D, angles, weight, rotary.norm_eps);
    if (row < num_heads)
        std::memcpy(q, turned, D * sizeof(float));
    else
        pages.write(0, row - num_heads, work.step.slots[token], turned, work.layer.k_scale);
}
