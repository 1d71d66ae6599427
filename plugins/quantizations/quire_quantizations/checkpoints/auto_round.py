"""Checkpoints of AutoRound in its own format, whose layers are packed as those of GPTQ or of AWQ.

`packing_format` says which, such as `auto_round:auto_gptq` (Cheng et al., 2024; `quant_method` is
`auto-round`). The other options have the names that they have there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.errors import RefusedError
from quire.interfaces.quantization import PreparedQuantization
from quire_quantizations.checkpoints.awq import AWQ
from quire_quantizations.checkpoints.gptq import GPTQ

READERS: Mapping[str, type[AWQ | GPTQ]] = {
    "auto_gptq": GPTQ,
    "gptq": GPTQ,
    "auto_awq": AWQ,
    "awq": AWQ,
}


class AutoRound(PreparedQuantization):
    """Reader of AutoRound checkpoints, which is the one of their packing."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> PreparedQuantization:
        """Return the reader of GPTQ or AWQ checkpoints.

        Raises:
            RefusedError: The packing, or what the reader finds in the options, is not supported.
        """
        packing = str(config.get("packing_format"))
        reader = READERS.get(packing.removeprefix("auto_round:"))
        if reader is None:
            raise RefusedError(
                f"quantization_config.packing_format of config.json is {packing!r}; quire reads "
                "auto_round:auto_gptq and auto_round:auto_awq: use a checkpoint with one of those"
            )
        return reader.from_config(config)
