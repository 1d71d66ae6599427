"""Options of mxfp4 checkpoints, all of which are for other engines."""

from collections.abc import Mapping
from typing import Any

from quire.interfaces.weight_codes import E2M1, MLP, WeightCodes

BLOCK = 32


def describe(config: Mapping[str, Any]) -> tuple[WeightCodes, ...]:
    """Return the codes of the experts."""
    del config
    return (WeightCodes(E2M1, 4, BLOCK, parts=frozenset({MLP})),)
