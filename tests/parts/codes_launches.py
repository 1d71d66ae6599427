"""Launches of the products with codes at the sizes of real models, to be compiled and not run."""

import torch

from quire_quantizations.triton.codes_product import LARGEST_UNIT, grouped_product, product
from quire_quantizations.triton.packed_codes import PANEL, PackedCodes

FEW, MANY = 8, 2000  # rows


def ordinary() -> None:
    """Decode steps and prompts in bfloat16, with the formats that most checkpoints have."""
    linear("integer", 2, 128, torch.bfloat16, zeros=torch.uint8)
    linear("e4m3", 1, 128, torch.bfloat16)
    experts("e2m1", 2, 32, torch.bfloat16, has_bias=True)


def with_float8() -> None:
    """What runs on a GPU that converts e4m3 by an instruction."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        linear("float8", 1, 128, dtype)
    experts("float8", 1, 128, torch.bfloat16)


def every_format_bfloat16() -> None:
    every_format(torch.bfloat16)


def every_format_float16() -> None:
    every_format(torch.float16)


def every_format_float32() -> None:
    every_format(torch.float32)


def every_format(dtype: torch.dtype) -> None:
    linear("integer", 2, 128, dtype, is_invariant=True)  # in tiles of 64 rows
    linear("integer", 2, 32, dtype, zeros=torch.float32)
    linear("integer", 1, 4096, dtype)
    linear("integer", 1, 128, dtype, zeros=torch.uint8)
    linear("integer", 2, 96, dtype, inputs=96 * 30)
    linear("e2m1", 2, 16, dtype)
    linear("table", 2, 64, dtype)
    linear("table", 1, 128, dtype)
    linear("e4m3", 1, 4096, dtype)
    experts("integer", 2, 128, dtype, has_bias=True, is_ordered=True)
    experts("e4m3", 1, 128, dtype, is_invariant=True)


def codes(
    decoding: str,
    per_byte: int,
    group_size: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    zeros: torch.dtype | None = None,
    is_ordered: bool = False,
) -> PackedCodes:
    """Return a weight, or those of several experts, of memory that nothing reads."""
    *experts, outputs, inputs = shape
    unit = LARGEST_UNIT[dtype.itemsize]
    while group_size % (unit * per_byte) and unit > 16:
        unit //= 2
    panels, groups = -(-outputs // PANEL), inputs // group_size

    def made(*sizes: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.empty(1, dtype=dtype).expand(*experts, *sizes)

    return PackedCodes(
        num_outputs=outputs,
        num_inputs=inputs,
        decoding=decoding,
        codes_per_byte=per_byte,
        zero=8,
        group_size=group_size,
        codes=made(panels, inputs // (unit * per_byte), PANEL, unit),
        scales=made(panels, groups, PANEL, dtype=torch.float16),
        offsets=None if zeros is None else made(panels, groups, PANEL, dtype=zeros),
        table=made(16, dtype=torch.float32) if decoding == "table" else None,
        order=made(inputs, dtype=torch.int32) if is_ordered else None,
    )


def linear(
    decoding: str,
    per_byte: int,
    group_size: int,
    dtype: torch.dtype,
    *,
    inputs: int = 4096,
    zeros: torch.dtype | None = None,
    is_invariant: bool = False,
) -> None:
    """Launch the product of one weight with few and many rows, or in batch-invariant mode."""
    weight = codes(decoding, per_byte, group_size, (6144, inputs), dtype, zeros=zeros)
    bias = torch.empty(6144, dtype=dtype)
    for num_rows in (FEW, MANY):
        x = torch.empty(1, dtype=dtype).expand(num_rows, inputs)
        out = torch.empty(num_rows, 6144, dtype=dtype)
        product(x, weight, bias, out, batch_invariant=is_invariant)


def experts(
    decoding: str,
    per_byte: int,
    group_size: int,
    dtype: torch.dtype,
    *,
    has_bias: bool = False,
    is_ordered: bool = False,
    is_invariant: bool = False,
) -> None:
    """Launch the product of 32 experts with few and many rows."""
    shape = (32, 1536, 2048)
    weight = codes(decoding, per_byte, group_size, shape, dtype, is_ordered=is_ordered)
    bias = torch.empty(32, 1536, dtype=dtype) if has_bias else None
    ends = torch.zeros(32, dtype=torch.int64)
    for num_rows in (FEW, 4 * MANY):
        x = torch.empty(1, dtype=dtype).expand(num_rows, 2048)
        grouped_product(x, weight, bias, ends, batch_invariant=is_invariant)
