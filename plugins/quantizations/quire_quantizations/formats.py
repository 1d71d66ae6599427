"""Formats of packed weights; `linear_formats.h` has their layouts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """Format of a packed weight.

    Attributes:
        index: Index of the format in linear.cpp.
        is_bf16: Whether the format stores bfloat16, so that a wider weight is never needed.
    """

    index: int
    is_bf16: bool = False


FLOAT32 = Format(0)
BFLOAT16 = Format(1, is_bf16=True)
INT8 = Format(2)
INT4 = Format(3)
BFLOAT16_DOT = Format(4, is_bf16=True)
