// Each function of vec.h over an array, a vector at a time.
#include "export.h"
#include "vec.h"

EXPORT void lanes(int32_t* out) { *out = LANES; }

EXPORT void exponentials(const float* in, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) store(out + i, exp(load(in + i)));
}

EXPORT void widened(const uint16_t* in, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) store(out + i, load_bf16(in + i));
}

EXPORT void widened_singly(const uint16_t* in, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i++) out[i] = from_bf16(in[i]);
}

EXPORT void narrowed(const float* in, uint16_t* out, int64_t size) {
    for (int64_t i = 0; i < size; i++) out[i] = to_bf16(in[i]);
}

EXPORT void from_bytes(const int8_t* in, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) store(out + i, load_i8(in + i));
}

EXPORT void products(const float* a, const float* b, const float* c, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES)
        store(out + i, fma(load(a + i), load(b + i), load(c + i)));
}

EXPORT void larger(const float* a, const float* b, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) store(out + i, max(load(a + i), load(b + i)));
}

EXPORT void smaller(const float* a, const float* b, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) store(out + i, min(load(a + i), load(b + i)));
}

EXPORT void rounded(const float* in, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) store(out + i, round_to_integer(load(in + i)));
}

EXPORT void sums(const float* in, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) out[i / LANES] = sum(load(in + i));
}

EXPORT void maxima(const float* in, float* out, int64_t size) {
    for (int64_t i = 0; i < size; i += LANES) out[i / LANES] = max_lane(load(in + i));
}
