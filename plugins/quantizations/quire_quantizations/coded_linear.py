"""Linear method that keeps the codes of a quantized checkpoint, where a format has them."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.formats import BFLOAT16, NUMBERS_4, NUMBERS_8, Format, Inputs
from quire_quantizations.grouped_codes import GroupedCodes, in_a_format, joined
from quire_quantizations.packed_linear import PackedLinear
from quire_quantizations.packed_memory import PackedMemory


class CodedLinear(PackedLinear):
    """Products with the codes and scales of the checkpoint.

    A weight whose codes no format has, and one of which a slice is not quantized, is dequantized,
    and stored as any other weight.

    Args:
        memory: Memory of the packed weights.
        inputs: Compute dtype that inputs are rounded to.
        has_int8_inputs: Whether the inputs of all integers are rounded to 8 bits instead. Those of
            weights that the checkpoint has made for it always are.
        may_round: Whether other weights may be stored as bfloat16, if they are wider.
    """

    def __init__(
        self,
        memory: PackedMemory,
        *,
        inputs: Inputs = "float32",
        has_int8_inputs: bool = False,
        may_round: bool = False,
    ) -> None:
        dense = replace(BFLOAT16, inputs=inputs)
        super().__init__(dense, memory, has_rows=True, may_round=may_round)
        self._inputs = inputs
        self._has_int8_inputs = has_int8_inputs
        self._pieces: dict[int, QuantizedWeight] = {}  # by first row

    def load_quantized(self, layer: nn.Module, weight: QuantizedWeight, first_row: int) -> None:
        """Keep the slice until all are there."""
        del layer
        self._pieces[first_row] = weight

    def finish_loading(self, layer: nn.Module) -> None:
        """Pack the codes, or else the dequantized weight."""
        pieces, self._pieces = self._pieces, {}
        found = self._codes(pieces, len(layer.get_parameter("weight")))
        if found is not None:
            codes, self.weight_format = found
            return self._pack(layer, codes)
        for first_row, weight in pieces.items():
            super().load_quantized(layer, weight, first_row)
        super().finish_loading(layer)
        return None

    def _codes(
        self, pieces: dict[int, QuantizedWeight], num_rows: int
    ) -> tuple[GroupedCodes, Format] | None:
        """Return the whole weight in a format that keeps its codes, if there is one."""
        if not pieces or sum(len(weight.codes) for weight in pieces.values()) < num_rows:
            return None
        whole = joined([pieces[first_row] for first_row in sorted(pieces)])
        found = None if whole is None else in_a_format(whole)
        if whole is None or found is None:
            return None
        codes, stored = found
        is_integer = stored in (*NUMBERS_4, *NUMBERS_8)
        rounds_to_int8 = is_integer and (self._has_int8_inputs or whole.has_int8_inputs)
        return codes, replace(stored, inputs="int8" if rounds_to_int8 else self._inputs)
