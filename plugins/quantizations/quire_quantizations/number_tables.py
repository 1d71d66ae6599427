"""Values of the codes of narrow number types, and the types of tables."""

from __future__ import annotations

import torch
from torch import Tensor

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the fourth bit is the sign
NF4_VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
SIGN = 128  # of a float of 8 bits
E4M3_NAN, E8M0_NAN = 0x7F, 0xFF
E8M0_BIAS = 127


def e2m1_table() -> Tensor:  # [16]
    """Return the values of 4-bit floats."""
    return torch.tensor([*E2M1_MAGNITUDES, *(-value for value in E2M1_MAGNITUDES)])


def nf4_table() -> Tensor:  # [16]
    """Return the values of the type nf4 (Dettmers et al., 2023)."""
    return torch.tensor(NF4_VALUES)


def float8_table(dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:  # [256]
    """Return the values of a type of 8 bits, of which some may be infinite or NaN."""
    return torch.arange(256, dtype=torch.uint8).view(dtype).float()


def powers_of_two(
    exponents: Tensor,  # uint8
) -> Tensor:
    """Return numbers of the type e8m0 in float32; NaN becomes infinite."""
    return torch.ldexp(torch.ones(exponents.shape), exponents.int() - E8M0_BIAS)


def zero_of(table: Tensor) -> float | None:
    """Return the code of 0 of a table of consecutive numbers; None: it has others."""
    first = float(table[0]) if len(table) else 0.0
    return -first if torch.equal(table, torch.arange(len(table)) + first) else None


def has_magnitude(codes: Tensor, magnitude: int) -> bool:
    """Return whether a code of a float of 8 bits is at least this one, without its sign.

    Codes with the sign are the highest bytes, and those without it the highest signed bytes.
    """
    if not codes.numel():
        return False
    return max(int(codes.amax()) - SIGN, int(codes.view(torch.int8).amax())) >= magnitude
