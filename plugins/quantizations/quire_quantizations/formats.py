"""Formats of packed weights; `linear_formats.h` has their layouts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """Format of a packed weight, and how it is multiplied.

    Attributes:
        index: Index of the format in linear.cpp.
        rounds_inputs: Whether inputs are rounded to the weight's number type and multiplied as
            such; if not, products are of float32.
        is_bf16: Whether the format stores bfloat16, so that a wider weight is never needed.
    """

    index: int
    rounds_inputs: bool = False
    is_bf16: bool = False


FLOAT32 = Format(0)
BFLOAT16 = Format(1, is_bf16=True)
BFLOAT16_DOT = Format(1, rounds_inputs=True, is_bf16=True)
INT8 = Format(2)
INT8_DOT = Format(2, rounds_inputs=True)
INT4 = Format(3)
INT4_DOT = Format(3, rounds_inputs=True)
