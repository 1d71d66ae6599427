// Packing of a dense weight, and reading of packed rows.
#pragma once

#include "linear_formats.h"
#include "shuffle.h"

// Consecutive outputs of a dense weight, each `stride` elements behind the one before.
struct DenseSlice {
    const void* values;
    int64_t outputs, stride;
};

enum class NumberType { FLOAT32, BFLOAT16, FLOAT16 };

// A dense weight, [outputs, inputs], as slices one after another.
struct Dense {
    const DenseSlice* slices;
    NumberType type;
    long inputs, outputs;

    const uint8_t* row(long output) const {
        const DenseSlice* slice = slices;
        for (; output >= slice->outputs; slice++) output -= slice->outputs;
        return (const uint8_t*)slice->values + output * slice->stride * width();
    }

    long width() const { return type == NumberType::FLOAT32 ? 4 : 2; }  // bytes of an element

    // A group of inputs of one panel: [size, PANEL], zeros beyond the last output.
    void read(float* to, long first_output, long k, long size) const {
        const auto read_some = [&](const uint8_t* row, long i, long count) {
            const uint16_t* halves = (const uint16_t*)row + k + i;
            if (type == NumberType::BFLOAT16) return load_some_bf16(halves, count);
            if (type == NumberType::FLOAT16) return load_some_f16(halves, count);
            return load_some((const float*)row + k + i, count);
        };
        transpose_to((uint8_t*)to, PANEL * 4, first_output, size, read_some);
    }

    // The same without decoding: 32-bit words of the memory from input k on, of which `last` bytes
    // belong to the last of `count` words of an output.
    void read_words(uint8_t* to, long first_output, long k, long count, long last) const {
        const long begin = k * width();
        transpose_to(to, PANEL * 4, first_output, count, [&](const uint8_t* row, long i, long some) {
            const uint8_t* from = row + begin + i * 4;
            if (some > LANES || (some == LANES && last == 4)) return load((const float*)from);
            vf words = zero();  // bytes behind the weight must not be read
            std::memcpy(&words, from, (some - 1) * 4 + last);
            return words;
        });
    }

    // Stores vectors of `size` consecutive elements of each output as [size, PANEL].
    template <class Read>
    void transpose_to(
        uint8_t* to, long step_bytes, long first_output, long size, const Read& read_some
    ) const {
        for (long lane = 0; lane < PANEL; lane += LANES) {
            const uint8_t* rows[LANES];  // null: no such output
            for (long o = 0; o < LANES; o++) {
                const long output = first_output + lane + o;
                rows[o] = output < outputs ? row(output) : nullptr;
            }
            for (long i = 0; i < size; i += LANES) {
                vf block[LANES];
                for (long o = 0; o < LANES; o++)
                    block[o] = rows[o] ? read_some(rows[o], i, size - i) : zero();
                transpose(block);
                const long count = size - i < LANES ? size - i : LANES;
                for (long o = 0; o < count; o++)
                    store((float*)(to + (i + o) * step_bytes) + lane, block[o]);
            }
        }
    }
};

// Whether words of the packed weight are those of the dense one.
template <class F>
bool keeps_bits(const Dense& from) {
    if (F::SCALED || F::WORD_BYTES == 2) return false;
    return from.type == (F::IS_BF16 ? NumberType::BFLOAT16 : NumberType::FLOAT32);
}

INLINE vf nearest_bf16(vf v) {
    return (vf)(bf16_words(v) << 16);
}

// 1 / scale; 0 if that is infinite, for a scale of 0 or close to it: the codes are then 0.
INLINE vf inverse(vf scale) {
    vf zeros = zero(), found = set1(1.0f) / scale;
    return max(found, -found) == set1(INFINITY) ? zeros : found;
}
INLINE vf code(vf value, vf inverse_scale, float lowest, float highest) {
    return round_to_integer(min(max(value * inverse_scale, set1(lowest)), set1(highest)));
}

// Value with the largest magnitude, with its sign; NaN if there is a NaN.
INLINE vf extreme(const float* values, long size) {
    vf found = zero(), furthest = zero();
    for (long i = 0; i < size; i++) {
        vf v = load(values + i * PANEL), distance = max(v, -v);
        distance = v != v ? v : distance;
        vi is_further = (vi)(distance > furthest) | (vi)(v != v);
        found = is_further ? v : found;
        furthest = is_further ? distance : furthest;
    }
    return found;
}

// Each `quantize` replaces the values of LANES outputs by codes, and returns their scales.

// The extreme value has the code 127 or -127.
INLINE vf quantize(Int8, float* values, long size) {
    vf furthest = extreme(values, size);
    furthest = furthest < zero() ? -furthest : furthest;
    vf scale = nearest_bf16(furthest / set1(127.0f)), factor = inverse(scale);
    for (long i = 0; i < size; i++)
        store(values + i * PANEL, code(load(values + i * PANEL), factor, -127.0f, 127.0f));
    return scale;
}

// Codes for one scale, and the best scale for these codes: by least squares it is
// products / squares, and reduces the squared error by products^2 / squares.
struct Trial {
    vf factor, scale, gain;
};
INLINE Trial try_scale(const float* values, long size, vf scale) {
    vf factor = inverse(scale), products = zero(), squares = zero(), zeros = zero();
    for (long i = 0; i < size; i++) {
        vf v = load(values + i * PANEL), c = code(v, factor, -8.0f, 7.0f);
        products = products + v * c;
        squares = squares + c * c;
    }
    vf best = products / squares;
    vf gain = products * best;
    gain = squares == zeros ? zeros : gain;
    best = squares == zeros ? scale : nearest_bf16(best);
    return {factor, best, gain};
}

// The extreme value has a code from -6 to -9.5 (clamped to -8), the one with the largest gain.
constexpr int TRIALS = 8;
INLINE vf quantize(Int4, float* values, long size) {
    vf furthest = extreme(values, size);
    Trial best = try_scale(values, size, nearest_bf16(furthest / set1(-6.0f)));
    for (int i = 1; i < TRIALS; i++) {
        float divisor = -6.0f - 0.5f * (float)i;
        Trial other = try_scale(values, size, nearest_bf16(furthest / set1(divisor)));
        vi is_better = other.gain > best.gain;
        best.factor = is_better ? other.factor : best.factor;
        best.scale = is_better ? other.scale : best.scale;
        best.gain = is_better ? other.gain : best.gain;
    }
    for (long i = 0; i < size; i++)
        store(values + i * PANEL, code(load(values + i * PANEL), best.factor, -8.0f, 7.0f));
    return furthest != furthest ? furthest : best.scale;
}

template <class F>
void pack_group(uint8_t* panel, float* values, long k, long size) {
    if constexpr (F::SCALED) {
        uint8_t* scales = panel + Layout<F>::word(k, 0) - Layout<F>::SCALE_BYTES;
        for (long lane = 0; lane < PANEL; lane += LANES) {
            vf scale = quantize(F(), values + lane, size);
            for (int i = 0; i < LANES; i++) {
                uint16_t half = to_bf16(scale[i]);
                std::memcpy(scales + (lane + i) * 2, &half, 2);
            }
        }
    }
    for (long i = 0; i < size; i += F::STEP)
        for (long lane = 0; lane < PANEL; lane += LANES)
            F::write(panel + Layout<F>::word(k + i, lane), values + i * PANEL + lane);
}

template <class F>
void pack_panels(uint8_t* packed, const Dense& from, long threads) {
    long panels = divided(from.outputs, PANEL), bytes = Layout<F>::panel_bytes(from.inputs);
    share_evenly(panels, threads, [&](long p) {
        uint8_t* panel = packed + p * bytes;
        if (keeps_bits<F>(from)) {
            const long words = divided(from.inputs, F::STEP), rest = from.inputs % F::STEP;
            return from.read_words(panel, p * PANEL, 0, words, rest ? 4 / F::STEP * rest : 4);
        }
        float values[F::GROUP * PANEL];
        for (long k = 0; k < from.inputs; k += F::GROUP) {
            long rest = from.inputs - k, size = rest < F::GROUP ? rest : F::GROUP;
            if (size % F::STEP) std::memset(values, 0, sizeof values);
            from.read(values, p * PANEL, k, size);
            pack_group<F>(panel, values, k, size);
        }
    });
}

constexpr long ROWS_FOR_THREADS = 8;  // fewer rows are read before another thread has started

// A value by the scale, and with the offset, that its group has for a lane.
template <class F>
float scaled(float value, const uint8_t* scales, long lane) {
    if constexpr (F::SCALE_WIDTH > 2) {
        float scale, offset = 0.0f;
        std::memcpy(&scale, scales + lane * 4, 4);
        if constexpr (F::HAS_OFFSETS) std::memcpy(&offset, scales + (PANEL + lane) * 4, 4);
        return value * scale + offset;
    } else {
        uint16_t half;
        std::memcpy(&half, scales + lane * 2, 2);
        return value * from_bf16(half);
    }
}

// The inputs of a weight with an order are written where they are in x.
template <class F>
void read_rows(
    float* out, const uint8_t* packed, const int32_t* order, long inputs, const int64_t* ids,
    long count, long threads
) {
    long bytes = Layout<F>::panel_bytes(inputs);
    share_evenly(count, count < ROWS_FOR_THREADS ? 1 : threads, [&](long i) {
        const uint8_t* panel = packed + ids[i] / PANEL * bytes;
        long lane = ids[i] % PANEL;
        for (long k = 0; k < inputs; k++) {
            float value = F::read(panel + Layout<F>::word(k, lane), (int)(k % F::STEP));
            if constexpr (F::SCALED)
                value = scaled<F>(value, panel + k / F::GROUP * Layout<F>::GROUP_BYTES, lane);
            out[i * inputs + (order ? order[k] : k)] = value;
        }
    });
}
