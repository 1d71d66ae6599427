"""float8 and int8 codes of a KV cache, computed by integer arithmetic, the same on every GPU.

float8 is e4m3fn: a sign, four bits of exponent with bias 7, three of mantissa, no infinity. Shifted
by seven bits, its code is a float16 of 1/256 of the value, subnormals included. So decoding is
exact and needs no table; the factor of 256 is folded into a scale that is applied anyway.

    float8  s eeee mmm                   float16  s 0eeee mmm0000000

The functions are for Triton kernels: values are float32, codes are uint8 or int8.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl

FLOAT8_UNIT = 256.0  # factor that the caller of `decode_float8` multiplies by
FLOAT8_MAX = tl.constexpr(448.0)
INT8_MAX = tl.constexpr(127.0)
SMALLEST_NORMAL = tl.constexpr(2.0**-6)
# Adding it rounds to the nearest multiple of 2**-9, ties to even, in the last bits of the sum.
SUBNORMAL_ROUNDER = tl.constexpr(2.0**14)
SUBNORMAL_ROUNDER_BITS = tl.constexpr(0x46800000)
INTEGER_ROUNDER = tl.constexpr(1.5 * 2.0**23)  # the same for integers
INTEGER_ROUNDER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def decode_float8(codes):  # uint8 -> float16
    """Return 1/256 of the values; the codes of NaN decode to 480 / 256."""
    wide = codes.to(tl.uint16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def encode_float8(x):  # float32 -> uint8
    """Return the codes of the nearest values, ties to even; magnitudes beyond 448 become 448."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(tl.abs(x), FLOAT8_MAX)
    magnitude_bits = magnitude.to(tl.int32, bitcast=True)
    normal = ((magnitude_bits + 0x7FFFF + ((magnitude_bits >> 20) & 1)) >> 20) - (120 << 3)
    small = (magnitude + SUBNORMAL_ROUNDER).to(tl.int32, bitcast=True) - SUBNORMAL_ROUNDER_BITS
    code = tl.where(magnitude < SMALLEST_NORMAL, small, normal)
    code = tl.where(x != x, 0x7F, code)
    return (((bits >> 24) & 0x80) | code).to(tl.uint8)


@triton.jit
def int8_scale(largest):  # float32, the largest |x| of each row; infinity for a row with a NaN
    """Return the scale of each row; a row of zeros has the scale zero."""
    return tl.div_rn(largest, INT8_MAX)


@triton.jit
def scale_magnitudes(x):  # float32
    """Return |x|, and infinity where x is NaN, so that the scale of its row becomes infinite."""
    return tl.where(x == x, tl.abs(x), float("inf"))


@triton.jit
def encode_int8(x, scale):  # float32, float32 that broadcasts -> int8
    """Return x / scale rounded to nearest, ties to even; zeros where the scale is zero."""
    is_usable = (scale > 0.0) & (scale < float("inf"))
    scaled = tl.div_rn(x, tl.where(is_usable, scale, 1.0))
    scaled = tl.minimum(tl.maximum(scaled, -INT8_MAX), INT8_MAX)
    rounded = (scaled + INTEGER_ROUNDER).to(tl.int32, bitcast=True)
    return (rounded - INTEGER_ROUNDER_BITS).to(tl.int8)
