// Activation functions of vectors: each is a struct with `of(x, coefficients)`. An element is
// computed by the same operations in any lane, and NaN stays NaN.
#pragma once

#include "vec.h"

INLINE vf absolute(vf v) { return from_bits(bits(v) & set1i(0x7fffffff)); }

// e^v for v <= 0: the result of `exp`, without the steps that only positive v need.
INLINE vf exp_of_negative(vf v) {
    const vf low = set1(-87.33654f), zeros = zero();
    vf x = max(v, low);
    vf n, y = exp_without_power(x, n);
    y = y * from_bits((__builtin_convertvector(n, vi) + set1i(127)) << 23);
    return v < low ? zeros : y;
}

// e^v - 1 for v <= 1, right to a few units in the last place near zero as well.
INLINE vf exp_minus_one(vf v) {
    vf x = min(max(v, set1(-87.33654f)), set1(1.0f));
    vf n, y = exp_polynomial(x, n);
    vf power = from_bits((__builtin_convertvector(n, vi) + set1i(127)) << 23);
    return fma(power, fma(y, x * x, x), power - set1(1.0f));
}

// The probability that a normal variable is above |x|, right to five units in the last place: the
// scaled complementary error function by a polynomial in 1 / (1 + |x| / sqrt(8)), fitted for the
// least relative error, times e^(-x^2 / 2), with the rounding error of x^2 added.
INLINE vf normal_tail(vf x) {
    constexpr float FITTED[] = {
        0.2820645f,    0.28285703f, 0.23864484f, 0.22554186f,  -0.09831763f,
        0.42127427f,   -0.6700225f, 0.4289284f,  -0.123254694f, 0.0122838775f,
    };
    const vf one = set1(1.0f), half = set1(0.5f);
    vf distance = min(absolute(x), set1(16.0f));
    vf t = one / fma(distance, set1(0.35355339f), one);
    vf sum = set1(FITTED[9]);
    for (int i = 8; i >= 0; i--) sum = fma(sum, t, set1(FITTED[i]));
    vf square = distance * distance;
    vf rest = fma(distance, distance, -square);
    return half * t * sum * exp_of_negative(-half * square) * (one - half * rest);
}

// x * sigmoid(slope), without overflow. NaN stays NaN, because x is NaN wherever the slope is.
INLINE vf gated(vf x, vf slope) {
    const vf one = set1(1.0f);
    vf small = exp_of_negative(-absolute(slope));
    vf above = slope >= zero() ? one : small;
    return x * (above / (one + small));
}

struct Silu {
    INLINE vf of(vf x, const float*) { return gated(x, x); }
};

struct GeluTanh {  // (1 + tanh(u)) / 2 is the sigmoid of 2 * u
    INLINE vf of(vf x, const float*) {
        const vf slope = set1(1.5957691216057308f), cube = set1(0.044715f);
        return gated(x, slope * fma(cube * x * x, x, x));
    }
};

struct Relu {
    INLINE vf of(vf x, const float*) {
        const vf zeros = zero();
        return x < zeros ? zeros : x;
    }
};

struct Gelu {  // x times the probability that a normal variable is below x
    INLINE vf of(vf x, const float*) {
        return Relu::of(x, nullptr) - absolute(x) * normal_tail(x);
    }
};

struct SquaredRelu {
    INLINE vf of(vf x, const float*) {
        vf positive = Relu::of(x, nullptr);
        return positive * positive;
    }
};

struct QuickGelu {
    INLINE vf of(vf x, const float*) { return gated(x, set1(1.702f) * x); }
};

struct Xielu {  // the coefficients are a, b, beta and eps
    INLINE vf of(vf x, const float* coefficients) {
        const vf a = set1(coefficients[0]), b = set1(coefficients[1]);
        const vf beta = set1(coefficients[2]), eps = set1(coefficients[3]);
        vf positive = a * x * x, negative = (exp_minus_one(min(x, eps)) - x) * b;
        return (x > zero() ? positive : negative) + beta * x;
    }
};

// Calls work(function) with the function of a number: the index of its name in `FUNCTIONS` of
// native/layer_kernels/cpu_activations.py.
template <class Work>
static inline void with_function(int number, const Work& work) {
    switch (number) {
        case 0: return work(Silu());
        case 1: return work(GeluTanh());
        case 2: return work(Gelu());
        case 3: return work(Relu());
        case 4: return work(SquaredRelu());
        case 5: return work(QuickGelu());
        case 6: return work(Xielu());
    }
}
