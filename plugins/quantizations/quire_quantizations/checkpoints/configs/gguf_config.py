"""Types of blocks in GGUF files, and what a file's weights are as codes, for estimates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from quire.interfaces.weight_codes import E2M1, INTEGERS, WeightCodes
from quire_quantizations.checkpoints.configs.values import values_of


@dataclass(frozen=True, slots=True)
class BlockType:
    """What the codes of a type of blocks stand for.

    Attributes:
        values: Value of each code, or the name of their table.
        group_size: Elements that share a scale.
        has_offsets: Whether they share an offset, too.
        has_wide_scales: Whether scales and offsets have more than 16 bits.
    """

    values: range | str
    group_size: int = 32
    has_offsets: bool = False
    has_wide_scales: bool = False


BYTES, E2M1_BITS = range(-128, 128), 4
BLOCK_TYPES: Mapping[str, BlockType] = {
    "Q4_0": BlockType(range(-8, 8)),
    "Q4_1": BlockType(range(16), has_offsets=True, has_wide_scales=True),
    "Q5_0": BlockType(range(-16, 16)),
    "Q5_1": BlockType(range(32), has_offsets=True, has_wide_scales=True),
    "Q8_0": BlockType(BYTES),
    "Q2_K": BlockType(range(4), 16, has_offsets=True, has_wide_scales=True),
    "Q3_K": BlockType(range(-4, 4), 16, has_wide_scales=True),
    "Q4_K": BlockType(range(16), has_offsets=True, has_wide_scales=True),
    "Q5_K": BlockType(range(32), has_offsets=True, has_wide_scales=True),
    "Q6_K": BlockType(range(-32, 32), 16, has_wide_scales=True),
    "IQ4_NL": BlockType(BYTES),
    "IQ4_XS": BlockType(BYTES, has_wide_scales=True),
    "MXFP4": BlockType(E2M1),
}


def describe(config: Mapping[str, Any]) -> tuple[WeightCodes, ...]:
    """Return the codes of each part of the model, with their shares of it.

    Args:
        config: `quantization_config`, in which `weight_types` has the number of elements of each
            part by the types of its matrices.

    Raises:
        UnsupportedModelError: A number is none.
    """
    found = []
    parts = values_of(config, "gguf").nested("weight_types")
    for part in parts.config:
        own = parts.nested(part)
        counts = {types: own.count(types) for types in own.config}
        for types, count in counts.items():
            codes = _codes_of(types.split())
            if codes is not None:
                share = count / sum(counts.values())
                found.append(replace(codes, parts=frozenset({part}), share=share))
    return tuple(found)


def _codes_of(types: Collection[str]) -> WeightCodes | None:
    """Return the codes of merged matrices of these types; None: they have none in common."""
    kinds = [BLOCK_TYPES[name] for name in types if name in BLOCK_TYPES]
    if len(kinds) < len(types) or not kinds:
        return None
    are_same = len({(kind.values, kind.group_size) for kind in kinds}) == 1
    numbers = [kind.values for kind in kinds if isinstance(kind.values, range)]
    if not are_same and len(numbers) < len(kinds):
        return None
    return WeightCodes(
        INTEGERS if numbers else E2M1,
        _bits_of(numbers[0] if are_same else BYTES) if numbers else E2M1_BITS,
        gcd(*(kind.group_size for kind in kinds)),
        has_offsets=any(kind.has_offsets for kind in kinds),
        has_wide_scales=any(kind.has_wide_scales for kind in kinds),
    )


def _bits_of(numbers: range) -> int:
    return (len(numbers) - 1).bit_length()
