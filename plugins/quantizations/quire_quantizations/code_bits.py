"""Bits that the weights of quantized checkpoints take, for estimates. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator

from quire.interfaces.weight_codes import E2M1, E4M3, INTEGERS, NF4, WeightCodes
from quire_quantizations import formats
from quire_quantizations.formats import Format

NARROW, WIDE = 4, 8  # bits of a code
FLOAT_BITS, HALF_BITS, ZERO_BITS = 32, 16, 8
LARGEST_GROUP = 128  # of formats; scales of whole outputs are repeated for it
SMALLEST_GROUP = 16  # of Triton kernels
TABLES = {NF4: (NARROW, formats.NF4), E2M1: (NARROW, formats.E2M1), E4M3: (WIDE, formats.E4M3)}


def bits_of_codes(codes: WeightCodes | None, dtype: str) -> float | None:
    """Return the bits of a weight that the method `codes` stores.

    Args:
        codes: Codes of the checkpoint; None: an ordinary weight.
        dtype: Dtype of the checkpoint's ordinary weights.

    Returns:
        The bits; None: those of the compute dtype, because no format keeps the codes.
    """
    if codes is None:
        return FLOAT_BITS if dtype == "float32" else HALF_BITS
    for code_bits, one in _formats(codes):
        fits = codes.group_size is None or codes.group_size % one.group_size == 0
        if fits and (one.has_offsets or not codes.has_offsets):
            return code_bits + FLOAT_BITS * (1 + one.has_offsets) / one.group_size
    return None


def bits_of_triton_codes(codes: WeightCodes | None, dtype: str) -> float | None:
    """Return the bits of a weight that the method `triton_codes` stores.

    Args:
        codes: Codes of the checkpoint; None: an ordinary weight.
        dtype: Dtype of the checkpoint's ordinary weights.

    Returns:
        The bits; None: those of the compute dtype.
    """
    del dtype
    if codes is None:
        return None
    code_bits = NARROW if codes.num_bits <= NARROW else WIDE
    if codes.group_size is None:
        return code_bits
    is_wide = codes.has_wide_scales or codes.values in (NF4, E4M3)
    scale_bits = FLOAT_BITS if is_wide else HALF_BITS  # as files have them
    offset_bits = FLOAT_BITS if codes.has_wide_scales else ZERO_BITS
    return code_bits + (scale_bits + offset_bits * codes.has_offsets) / codes.group_size


def _formats(codes: WeightCodes) -> Iterator[tuple[int, Format]]:
    """Yield the formats that may keep codes, each with the bits of a code, in order."""
    if codes.values == INTEGERS:
        if codes.num_bits <= NARROW:
            yield from ((NARROW, one) for one in formats.NUMBERS_4)
        yield from ((WIDE, one) for one in formats.NUMBERS_8)
    elif codes.values in TABLES:
        code_bits, tables = TABLES[codes.values]
        yield from ((code_bits, one) for one in tables)
