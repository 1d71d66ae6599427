"""Options of AutoRound checkpoints, which are those of their packing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.interfaces.weight_codes import WeightCodes
from quire_quantizations.checkpoints.configs.awq_config import AWQConfig
from quire_quantizations.checkpoints.configs.gptq_config import GPTQConfig
from quire_quantizations.checkpoints.configs.values import refused, values_of

METHOD, PREFIX = "auto-round", "auto_round:"
PACKINGS: Mapping[str, type[AWQConfig | GPTQConfig]] = {
    "auto_gptq": GPTQConfig,
    "gptq": GPTQConfig,
    "auto_awq": AWQConfig,
    "awq": AWQConfig,
}


def options_of(config: Mapping[str, Any]) -> AWQConfig | GPTQConfig:
    """Return the options of a checkpoint, as those of its packing.

    Raises:
        RefusedError: The packing, or what its format finds in the options, is not supported.
        UnsupportedModelError: An option is of another type than it must be.
    """
    values = values_of(config, METHOD)
    packing = PACKINGS.get(values.text("packing_format", "").removeprefix(PREFIX))
    if packing is None:
        raise refused(values, "packing_format", "auto_round:auto_gptq or auto_round:auto_awq")
    if values.text("data_type", "int") != "int":
        raise refused(values, "data_type", "int")
    return packing.read(config, METHOD)


def describe(config: Mapping[str, Any]) -> tuple[WeightCodes, ...]:
    """Check the options, and return the codes that they stand for."""
    return options_of(config).codes
