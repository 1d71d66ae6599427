"""float8 and int8 numbers of a KV cache, coded by integer arithmetic alike on every GPU.

float8 is e4m3fn: a sign, four bits of exponent with bias 7, three of mantissa, no infinity. Moved
by seven bits its code is a float16 of 1/256 of the value, subnormal ones included, so decoding is
exact and takes no table; the factor of 256 belongs into a scale that is multiplied anyway.

    float8  s eeee mmm                   float16  s 0eeee mmm0000000

Functions for Triton kernels: numbers are float32, codes are uint8 or int8.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN201

import triton
import triton.language as tl

FLOAT8_UNIT = 256.0  # what `decode_float8` leaves to be multiplied
FLOAT8_MAX = tl.constexpr(448.0)
INT8_MAX = tl.constexpr(127.0)
SMALLEST_NORMAL = tl.constexpr(2.0**-6)
# Adding it leaves the nearest multiple of 2**-9, ties to even, in the last bits of the sum.
SUBNORMAL_ROUNDER = tl.constexpr(2.0**14)
SUBNORMAL_ROUNDER_BITS = tl.constexpr(0x46800000)
INTEGER_ROUNDER = tl.constexpr(1.5 * 2.0**23)  # the same for whole numbers
INTEGER_ROUNDER_BITS = tl.constexpr(0x4B400000)


@triton.jit
def decode_float8(codes):  # uint8 -> float16
    """Return 1/256 of the values; the codes of not-a-number come out as 480 / 256."""
    wide = codes.to(tl.uint16)
    return (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)


@triton.jit
def encode_float8(x):  # float32 -> uint8
    """Return the codes of the nearest values, ties to even; beyond 448 that of 448."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(x), FLOAT8_MAX)
    size_bits = size.to(tl.int32, bitcast=True)
    normal = ((size_bits + 0x7FFFF + ((size_bits >> 20) & 1)) >> 20) - (120 << 3)
    small = (size + SUBNORMAL_ROUNDER).to(tl.int32, bitcast=True) - SUBNORMAL_ROUNDER_BITS
    code = tl.where(size < SMALLEST_NORMAL, small, normal)
    code = tl.where(x != x, 0x7F, code)
    return (((bits >> 24) & 0x80) | code).to(tl.uint8)


@triton.jit
def int8_scale(largest):  # float32, the largest |x| of rows; infinity where one is not a number
    """Return the scale of rows; of a row of zeros it is zero."""
    return tl.div_rn(largest, INT8_MAX)


@triton.jit
def sizes_for_scale(x):  # float32
    """Return |x|, and infinity where x is not a number, so that the scale of its row tells."""
    return tl.where(x == x, tl.abs(x), float("inf"))


@triton.jit
def encode_int8(x, scale):  # float32, float32 that broadcasts -> int8
    """Return x / scale to the nearest, ties to even; zeros where the scale is zero."""
    is_usable = (scale > 0.0) & (scale < float("inf"))
    number = tl.div_rn(x, tl.where(is_usable, scale, 1.0))
    number = tl.minimum(tl.maximum(number, -INT8_MAX), INT8_MAX)
    rounded = (number + INTEGER_ROUNDER).to(tl.int32, bitcast=True)
    return (rounded - INTEGER_ROUNDER_BITS).to(tl.int8)
