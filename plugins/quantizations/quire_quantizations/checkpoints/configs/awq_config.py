"""Options of AWQ checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.interfaces.weight_codes import INTEGERS, WeightCodes
from quire_quantizations.checkpoints.configs.values import group_size_of, refused, values_of

BITS = 4
LAYOUTS = ("gemm", "exllama")  # of which the files are the same


@dataclass(frozen=True, slots=True)
class AWQConfig:
    """Options of a checkpoint, checked.

    Attributes:
        group_size: Number of inputs that share a scale; None: all inputs of an output.
    """

    group_size: int | None

    @classmethod
    def read(cls, config: Mapping[str, Any], method: str = "awq") -> AWQConfig:
        """Read the options.

        Raises:
            RefusedError: The layout or the number of bits is not supported.
            UnsupportedModelError: An option is of another type than it must be.
        """
        values = values_of(config, method)
        if values.text("version", LAYOUTS[0]).lower() not in LAYOUTS:
            raise refused(values, "version", f"the layout {LAYOUTS[0]}")
        for key in ("bits", "w_bit"):
            if values.has(key) and config[key] != BITS:
                raise refused(values, key, f"{BITS} bits")
        is_short = values.has("q_group_size") and not values.has("group_size")
        return cls(group_size_of(values, "q_group_size" if is_short else "group_size"))

    @property
    def codes(self) -> tuple[WeightCodes, ...]:
        """The codes of all quantized layers."""
        return (WeightCodes(INTEGERS, BITS, self.group_size, has_offsets=True),)


def describe(config: Mapping[str, Any]) -> tuple[WeightCodes, ...]:
    """Check the options, and return the codes that they stand for."""
    return AWQConfig.read(config).codes
