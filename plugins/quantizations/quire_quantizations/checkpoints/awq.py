"""AWQ checkpoints: 4-bit integers packed along the outputs, with zero points for each group.

A linear layer of N outputs and K inputs has

    qweight  int32 [K, N / 8]     the eight outputs of a word in the order 0, 2, 4, 6, 1, 3, 5, 7
    qzeros   int32 [G, N / 8]     zero points, in the same order
    scales   float [G, N]

and `w = (q - z) * scale` (Lin et al., 2023; the layout `gemm` of AutoAWQ).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from quire.interfaces.checkpoint_tensors import CheckpointTensor, Read, Tensors
from quire.interfaces.quantization import PreparedQuantization
from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.checkpoints.configs.awq_config import BITS, AWQConfig
from quire_quantizations.checkpoints.unpacking import unpacked
from quire_quantizations.checkpoints.weight_parts import (
    FLOATS,
    WEIGHT,
    check_complete,
    check_finite,
    check_part,
    group_size_of,
    in_file,
    integers,
    modules_with,
    part,
    with_weights,
)

CODES, ZEROS, SCALES = ".qweight", ".qzeros", ".scales"
WORD_OUTPUTS = 8
FIELDS = [0, 4, 1, 5, 2, 6, 3, 7]  # of a word, by output


class AWQ(PreparedQuantization):
    """Reader of AWQ checkpoints.

    Args:
        options: Options of the checkpoint.
    """

    def __init__(self, options: AWQConfig) -> None:
        self.options = options

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> AWQ:
        """Read the options, whose errors are those of `AWQConfig.read`."""
        return cls(AWQConfig.read(config))

    def read(self, tensors: Tensors, read: Read) -> dict[str, CheckpointTensor]:
        """Return the tensors with a weight in place of the parts of each quantized layer."""
        del read
        check_complete(tensors, (ZEROS, SCALES), CODES)
        modules = list(modules_with(tensors, CODES))
        parts = {module + end for module in modules for end in (CODES, ZEROS, SCALES)}
        weights = {module + WEIGHT: self._weight(module, tensors) for module in modules}
        return with_weights(tensors, parts, weights, "awq")

    def _weight(self, module: str, tensors: Tensors) -> CheckpointTensor:
        codes = tensors[module + CODES]
        scales, zeros = (part(tensors, module + end, codes) for end in (SCALES, ZEROS))
        check_part(codes, ("I32",), (None, None), "awq")
        inputs, words = codes.shape
        outputs = words * WORD_OUTPUTS
        check_part(scales, FLOATS, (None, outputs), "awq")
        check_part(zeros, ("I32",), (scales.shape[0], words), "awq")
        size = group_size_of(inputs, scales.shape[0], self.options.group_size, scales)
        return CheckpointTensor(
            module + WEIGHT,
            (outputs, inputs),
            (*codes.stored, *scales.stored, *zeros.stored),
            partial(_decoded, name=in_file(scales), group_size=size),
            is_quantized=True,
        )


def _decoded(
    packed: Tensor,  # [K, N / 8]
    scales: Tensor,  # [G, N]
    zeros: Tensor,  # [G, N / 8]
    *,
    name: str,
    group_size: int,
) -> QuantizedWeight:
    factors = check_finite(scales, name).T.contiguous()  # [N, G]
    return QuantizedWeight(
        codes=_outputs(packed),
        scales=factors,
        table=integers(1 << BITS),
        group_size=group_size,
        offsets=-_outputs(zeros).float() * factors,
    )


def _outputs(packed: Tensor) -> Tensor:  # [n, N / 8] -> [N, n]
    fields = unpacked(packed, BITS).view(len(packed), -1, WORD_OUTPUTS)
    return fields[..., FIELDS].flatten(1).T.contiguous()
