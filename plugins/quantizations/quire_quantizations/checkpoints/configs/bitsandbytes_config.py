"""Options of bitsandbytes checkpoints, which only estimates need: each weight has its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.interfaces.weight_codes import INTEGERS, NF4, WeightCodes
from quire_quantizations.checkpoints.configs.values import refused, values_of

TABLES = (NF4, "fp4")
BLOCK = 64  # elements that share a scale, unless the files have others
IN_BYTES = WeightCodes(INTEGERS, 8)


def describe(config: Mapping[str, Any]) -> tuple[WeightCodes, ...]:
    """Check the options, and return the codes that they stand for.

    Raises:
        RefusedError: The table is not supported, or both sizes of codes are named.
        UnsupportedModelError: An option is of another type than it must be.
    """
    values = values_of(config, "bitsandbytes")
    in_fours, in_bytes = values.flag("load_in_4bit", False), values.flag("load_in_8bit", False)
    if in_fours and in_bytes:
        raise refused(values, "load_in_8bit", "either load_in_4bit or load_in_8bit")
    table = values.text("bnb_4bit_quant_type", TABLES[-1])
    if table not in TABLES:
        raise refused(values, "bnb_4bit_quant_type", " or ".join(TABLES))
    return (WeightCodes(table, 4, BLOCK) if in_fours else IN_BYTES,)
