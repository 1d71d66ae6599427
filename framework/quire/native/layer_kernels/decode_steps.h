// Inputs and outputs of a decode step: one token of each of some requests, whose state is in tables
// with a row per slot.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "export.h"

// A group of layers that share a table of KV blocks.
struct BlockGroup {
    const int32_t* blocks;  // by slot: [slots, width]
    int64_t width, block_size;
    int32_t* block_rows;  // of the step: [requests, width]
    int64_t* slot_mapping;  // of the step: [requests]
};

struct DecodeTables {
    // By slot.
    const int64_t *num_computed, *num_known;
    const int32_t* adapters;
    int32_t* token_ids;  // [slots, tokens_per_row]
    int64_t tokens_per_row;
    // Of the step: [requests].
    const int64_t* slots;
    int64_t *input_ids, *positions, *sampled_positions, *adapter_index;
    int32_t* seq_lens;
    const BlockGroup* groups;
    int64_t num_groups;
};

// Writes the inputs of a step of `count` requests. Of a row of blocks only those in use are written.
EXPORT void gather_decode(const DecodeTables* tables, int64_t count) {
    const DecodeTables& t = *tables;
    for (int64_t r = 0; r < count; r++) {
        const int64_t slot = t.slots[r], position = t.num_computed[slot];
        t.input_ids[r] = t.token_ids[slot * t.tokens_per_row + position];
        t.positions[r] = position;
        t.sampled_positions[r] = t.num_known[slot];
        t.adapter_index[r] = t.adapters[slot];
        t.seq_lens[r] = (int32_t)(position + 1);
        for (int64_t g = 0; g < t.num_groups; g++) {
            const BlockGroup& group = t.groups[g];
            const int32_t* row = group.blocks + slot * group.width;
            const int64_t last = position / group.block_size;
            std::memcpy(group.block_rows + r * group.width, row, (last + 1) * sizeof *row);
            group.slot_mapping[r] = row[last] * group.block_size + position % group.block_size;
        }
    }
}

// Appends the sampled token of each request to its row.
EXPORT void append_tokens(const DecodeTables* tables, const int32_t* sampled, int64_t count) {
    const DecodeTables& t = *tables;
    for (int64_t r = 0; r < count; r++)
        t.token_ids[t.slots[r] * t.tokens_per_row + t.sampled_positions[r]] = sampled[r];
}

// Packs token ids and the logits of these tokens, `stride` elements apart: int32 and the bits of
// float32, [2, count]. An id outside of the vocabulary has the logit NaN.
EXPORT void pack_tokens(
    const int64_t* token_ids, const float* logits, int64_t stride, int64_t vocab_size, int64_t count,
    int32_t* packed
) {
    for (int64_t r = 0; r < count; r++) {
        const int64_t id = token_ids[r];
        const bool is_token = id >= 0 && id < vocab_size;
        const float logit =
            is_token ? logits[r * stride + id] : std::numeric_limits<float>::quiet_NaN();
        packed[r] = (int32_t)id;
        std::memcpy(packed + count + r, &logit, sizeof logit);
    }
}
