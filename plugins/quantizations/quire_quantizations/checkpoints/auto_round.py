"""Checkpoints of AutoRound in its own format, whose layers are packed as those of GPTQ or of AWQ.

`packing_format` says which, such as `auto_round:auto_gptq` (Cheng et al., 2024; `quant_method` is
`auto-round`). The other options have the names that they have there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.interfaces.quantization import PreparedQuantization
from quire_quantizations.checkpoints.awq import AWQ
from quire_quantizations.checkpoints.configs.auto_round_config import options_of
from quire_quantizations.checkpoints.configs.gptq_config import GPTQConfig
from quire_quantizations.checkpoints.gptq import GPTQ


class AutoRound(PreparedQuantization):
    """Reader of AutoRound checkpoints, which is the one of their packing."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> PreparedQuantization:
        """Return the reader of GPTQ or AWQ checkpoints; errors are those of `options_of`."""
        options = options_of(config)
        return GPTQ(options) if isinstance(options, GPTQConfig) else AWQ(options)
