"""Formats of packed weights; `linear_formats.h` has their layouts."""

from dataclasses import dataclass, replace
from typing import Literal

Inputs = Literal["float32", "bfloat16", "int8"]


@dataclass(frozen=True, slots=True)
class Format:
    """Format of a packed weight, and how it is multiplied.

    Attributes:
        index: Index of the format in linear.cpp.
        inputs: Number type that inputs are rounded to. It is that of the products: of float32, of
            pairs of bfloat16, or of integers, whose inputs are codes of 8 bits.
        is_bf16: Whether the format stores bfloat16, so that a wider weight is never needed.
        group_size: Number of inputs that share a scale, in formats that keep the codes of quantized
            checkpoints; their index is that of code_formats.h. 0: the format is another.
        has_offsets: Whether such a format has offsets.
    """

    index: int
    inputs: Inputs = "float32"
    is_bf16: bool = False
    group_size: int = 0
    has_offsets: bool = False


FLOAT32 = Format(0)
BFLOAT16 = Format(1, is_bf16=True)
BFLOAT16_DOT = replace(BFLOAT16, inputs="bfloat16")
FLOAT16 = Format(4)
INT8 = Format(2)
INT8_DOT = replace(INT8, inputs="int8")
INT4 = Format(3)
INT4_DOT = replace(INT4, inputs="int8")

# Of code_formats.h, by table: those with the largest groups and without offsets first. Only numbers
# can be multiplied as integers.
NUMBERS_4 = (
    Format(0, group_size=128),
    Format(1, group_size=128, has_offsets=True),
    Format(10, group_size=32),
    Format(2, group_size=32, has_offsets=True),
)
NF4 = (Format(3, group_size=32),)
E2M1 = (Format(4, group_size=32),)
NUMBERS_8 = (
    Format(11, group_size=128),
    Format(5, group_size=128, has_offsets=True),
    Format(12, group_size=32),
    Format(6, group_size=32, has_offsets=True),
    Format(8, group_size=16),
    Format(9, group_size=16, has_offsets=True),
)
E4M3 = (Format(7, group_size=128),)
