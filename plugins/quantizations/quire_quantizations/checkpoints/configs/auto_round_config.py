"""Options of AutoRound checkpoints, which are those of their packing.

`extra_config` has other options of layers, by their names or by regular expressions that are found
anywhere in them. Layers with 16 bits or more are not quantized.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quire.interfaces.weight_codes import WeightCodes
from quire.layers.config_values import ConfigValues
from quire_quantizations.checkpoints.configs.awq_config import BITS as AWQ_BITS
from quire_quantizations.checkpoints.configs.awq_config import AWQConfig
from quire_quantizations.checkpoints.configs.gptq_config import (
    AS_THEY_ARE,
    EXCLUDED,
    INCLUDED,
    GPTQConfig,
    check_options,
)
from quire_quantizations.checkpoints.configs.values import refused, values_of

METHOD, PREFIX = "auto-round", "auto_round:"
EXTRA = "extra_config"
PLAIN_BITS = 16  # from which on a layer is not quantized
LM_HEAD = "lm_head"
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
    options = packing.read(config, METHOD)
    return _of_layers(options, values) if isinstance(options, GPTQConfig) else options


def describe(config: Mapping[str, Any]) -> tuple[WeightCodes, ...]:
    """Check the options, and return the codes that they stand for."""
    options = options_of(config)
    if isinstance(options, AWQConfig):
        in_groups = GPTQConfig(AWQ_BITS, options.group_size, AS_THEY_ARE, is_symmetric=False)
        options = _of_layers(in_groups, values_of(config, METHOD))
    return options.codes


def _of_layers(options: GPTQConfig, values: ConfigValues) -> GPTQConfig:
    """Return the options with those of layers in the form of `dynamic`.

    Raises:
        RefusedError: A number of bits is not supported.
        UnsupportedModelError: Options or patterns are of other types than they must be.
    """
    extra = values.nested(EXTRA)
    exact, searched, has_head = {}, {}, options.has_head
    for name in extra.config:
        own = extra.nested(name)
        is_plain = own.count("bits", 1) >= PLAIN_BITS
        if not is_plain:
            check_options(own)
            has_head |= name == LM_HEAD
        prefix = EXCLUDED if is_plain else INCLUDED
        if re.escape(name).replace(r"\.", ".") == name:
            exact[f"{prefix}{re.escape(name)}$"] = own.config
            continue
        try:
            re.compile(name)
        except re.error as error:
            raise values.wrong(EXTRA, name, f"names or regular expressions ({error})") from error
        searched[f"{prefix}.*(?:{name})"] = own.config
    return replace(options, has_head=has_head, dynamic={**exact, **searched})
