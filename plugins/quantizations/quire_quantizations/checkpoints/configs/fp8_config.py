"""Options of float8 checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.interfaces.weight_codes import E4M3, WeightCodes
from quire.layers.config_values import ConfigValues
from quire_quantizations.checkpoints.configs.values import refused, values_of

TYPES = (E4M3, "e5m2")

Block = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FP8Config:
    """Options of a checkpoint, checked.

    Attributes:
        block: Rows and columns that share a scale; None: a scale is for a whole weight.
        values: Number type of the weights, for estimates.
    """

    block: Block | None
    values: str = E4M3

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> FP8Config:
        """Read the options.

        Raises:
            RefusedError: The number type is not supported.
            UnsupportedModelError: An option is of another type than it must be.
        """
        values = values_of(config, "fp8")
        number_type = values.text("fmt", E4M3)
        if number_type not in TYPES:
            raise refused(values, "fmt", " or ".join(TYPES))
        return cls(block_of(values, "weight_block_size"), number_type)

    @property
    def codes(self) -> WeightCodes:
        """The codes of all quantized layers."""
        return WeightCodes(self.values, 8, None if self.block is None else self.block[1])


def describe(config: Mapping[str, Any]) -> tuple[WeightCodes, ...]:
    """Check the options, and return the codes that they stand for."""
    return (FP8Config.read(config).codes,)


def block_of(values: ConfigValues, key: str) -> Block | None:
    """Return the rows and columns of a block; None: there are no blocks.

    Raises:
        UnsupportedModelError: The value is no block.
    """
    size = values.config.get(key)
    if size is None:
        return None
    is_pair = isinstance(size, list | tuple) and len(size) == 2
    if not is_pair or not all(type(n) is int and n > 0 for n in size):
        raise values.wrong(key, size, "two whole numbers above 0, such as [128, 128]")
    return size[0], size[1]
