"""Inputs of one layer in one step, besides hidden states.

Letters as in `quire.interfaces.attention`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from quire.interfaces.model import ForwardBatch
from quire.layers.attention.rotary import Rotation


@dataclass(slots=True, kw_only=True)
class LayerStep:
    """Inputs of one layer in one step, besides hidden states.

    Attributes:
        positions: `[T]`.
        batch: The step.
        rotation: Rotation of the layer's queries and keys; None: there is none.
        layer_input: `[T, P]`, the layer's own input; None: there is none.
        key_values: Keys and values of the step that later layers use, `[T, 2 * K * D]`, by the
            index of the layer that projected them. They are before the norm of keys and the
            rotation. All layers of a step have the same mapping.
    """

    positions: Tensor
    batch: ForwardBatch
    rotation: Rotation | None = None
    layer_input: Tensor | None = None
    key_values: dict[int, Tensor] = field(default_factory=dict)
