"""GPTQ checkpoints: integers packed along the inputs, with a scale and a zero point for each group.

A linear layer of N outputs and K inputs has

    qweight  int32 [K * bits / 32, N]     K integers of each output, the lowest bits first
    qzeros   int32 [G, N * bits / 32]     zero points
    scales   float [G, N]
    g_idx    int32 [K]                    group of each input; without it, G consecutive groups

and `w = (q - z) * scale` (Frantar et al., 2022; the layout is that of AutoGPTQ). There are two
conventions: the format `gptq` stores `z - 1`, and `gptq_v2` stores `z`. As `checkpoint_format` in
config.json is sometimes wrong, the convention is found from the data. Zero points of symmetric
weights are all `2^(bits - 1)`. Otherwise, with up to 4 bits, the average weight of a layer is close
to zero compared with its scale, so the average code is the average zero point. Scales of 8 bits are
too small for that: the config is believed, and a warning says if several layers contradict it.

Bits and group sizes are those of the tensors. So a layer for which `dynamic` has other options is
read by its own, and one that is not quantized stays. Some files have a bias of zeros for every
layer; it is left out where the model has none.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Read, Tensors
from quire.interfaces.quantization import PreparedQuantization
from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.checkpoints.configs.gptq_config import (
    AS_THEY_ARE,
    BITS,
    LESS_ONE,
    GPTQConfig,
)
from quire_quantizations.checkpoints.unpacking import WORD_BITS, unpacked
from quire_quantizations.checkpoints.weight_parts import (
    FLOATS,
    WEIGHT,
    check_complete,
    check_finite,
    check_groups,
    check_part,
    group_size_of,
    in_file,
    integers,
    modules_with,
    part,
    with_weights,
)

logger = logging.getLogger(__name__)

CODES, ZEROS, SCALES, GROUPS = ".qweight", ".qzeros", ".scales", ".g_idx"
BIAS = ".bias"
TELLING_BITS = 4  # at most so many, so that a scale is large compared with an average weight
CLEAR = 0.25  # largest distance of an average zero point that tells the convention
SUSPICIOUS_LAYERS = 8  # with more bits, whose average distance contradicts the config


class GPTQ(PreparedQuantization):
    """Reader of GPTQ checkpoints.

    Args:
        options: Options of the checkpoint.
    """

    def __init__(self, options: GPTQConfig) -> None:
        self.options = options
        self._has_warned = False
        self._distances: list[float] = []  # of layers that do not tell the convention

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> GPTQ:
        """Read the options, whose errors are those of `GPTQConfig.read`."""
        return cls(GPTQConfig.read(config))

    def read(self, tensors: Tensors, read: Read) -> dict[str, CheckpointTensor]:
        """Return the tensors with a weight in place of the parts of each quantized layer."""
        check_complete(tensors, (ZEROS, SCALES), CODES)
        modules = list(modules_with(tensors, CODES))
        parts = {module + end for module in modules for end in (CODES, ZEROS, SCALES, GROUPS)}
        weights = {module + WEIGHT: self._weight(module, tensors) for module in modules}
        biases = {
            name: replace(tensors[name], is_optional=not read(tensors[name].stored[0]).any())
            for name in (module + BIAS for module in modules)
            if name in tensors
        }
        return with_weights(tensors, parts, weights, "gptq") | biases

    def _weight(self, module: str, tensors: Tensors) -> CheckpointTensor:
        codes = tensors[module + CODES]
        scales = part(tensors, module + SCALES, codes)
        check_part(codes, ("I32",), (None, None), "gptq")
        words, outputs = codes.shape
        check_part(scales, FLOATS, (None, outputs), "gptq")
        for end in self._required(module, scales.shape[0]):
            part(tensors, module + end, codes)
        zeros, groups = tensors.get(module + ZEROS), tensors.get(module + GROUPS)
        bits = self._bits(module, zeros, outputs)
        of = f"gptq with {bits} bits"
        inputs, num_groups = words * WORD_BITS // bits, scales.shape[0]
        stored = [*codes.stored, *scales.stored]
        if zeros is not None:
            check_part(zeros, ("I32",), (num_groups, outputs * bits // WORD_BITS), of)
            stored += zeros.stored
        if groups is None:
            size = group_size_of(inputs, num_groups, self.options.group_size, scales)
        else:
            check_part(groups, ("I32",), (inputs,), of)
            stored += groups.stored
            size = -(-inputs // num_groups) if num_groups else inputs
        decode = partial(
            self._decoded,
            module=module,
            names=(in_file(scales), in_file(groups or scales)),
            bits=bits,
            group_size=size,
            has_zeros=zeros is not None,
        )
        return CheckpointTensor(
            module + WEIGHT, (outputs, inputs), tuple(stored), decode, is_quantized=True
        )

    def _required(self, module: str, num_groups: int) -> Iterator[str]:
        """Yield the suffixes of parts that a layer has by the config."""
        options = self.options
        if options.option(module, "sym", options.is_symmetric) is not True:
            yield ZEROS
        if options.option(module, "desc_act", options.is_ordered) is True and num_groups > 1:
            yield GROUPS

    def _bits(self, module: str, zeros: CheckpointTensor | None, outputs: int) -> int:
        """Return the bits of a layer's codes, which its zero points tell."""
        named = self.options.option(module, "bits", self.options.bits)
        if zeros is None or len(zeros.shape) != 2 or not outputs:
            return named if named in BITS else self.options.bits
        bits, rest = divmod(zeros.shape[1] * WORD_BITS, outputs)
        if rest or bits not in BITS:
            raise CheckpointCorruptError(
                f"tensor {in_file(zeros)} has shape {list(zeros.shape)}; for {outputs} "
                f"outputs and {named} bits GPTQ needs "
                f"{outputs * self.options.bits // WORD_BITS} columns"
            )
        return bits

    def _decoded(
        self,
        packed: Tensor,  # [K * bits / 32, N]
        scales: Tensor,  # [G, N]
        *others: Tensor,
        module: str,
        names: tuple[str, str],  # of scales and groups
        bits: int,
        group_size: int,
        has_zeros: bool,
    ) -> QuantizedWeight:
        codes = unpacked(packed.T, bits)  # [N, K]
        factors = check_finite(scales, names[0]).T.contiguous()  # [N, G]
        middle = 1 << (bits - 1)
        zeros = self._zeros(others[0], codes, bits, module) if has_zeros else None
        groups = others[-1] if len(others) > has_zeros else None
        return QuantizedWeight(
            codes=codes,
            scales=factors,
            table=integers(2 * middle, middle if zeros is None else 0),
            group_size=group_size,
            offsets=None if zeros is None else -zeros * factors,
            groups=_groups(groups, factors.shape[1], group_size, names[1]),
        )

    def _zeros(self, packed: Tensor, codes: Tensor, bits: int, module: str) -> Tensor | None:
        """Return the zero points `[N, G]`; None: the weight is symmetric."""
        stored = unpacked(packed, bits).T.contiguous()  # [N, G]
        middle = 1 << (bits - 1)
        lowest, highest = stored.aminmax()
        if lowest == highest and int(lowest) in (middle - 1, middle):
            return None
        if self._stores_less_one(stored, codes, bits, module):
            stored = (stored + 1) & (2 * middle - 1)
        return stored.float()

    def _stores_less_one(self, stored: Tensor, codes: Tensor, bits: int, module: str) -> bool:
        """Return whether zero points are stored less one, which the config may say wrongly."""
        is_told = self.options.checkpoint_format == LESS_ONE
        spread, mean = torch.std_mean(codes.float())
        distance = float(mean - stored.float().mean())
        is_found = distance > 0.5
        doubt = abs(distance - is_found) + float(spread) / codes.numel() ** 0.5
        if bits > TELLING_BITS:
            self._suspect(distance, bits)
            return is_told
        if is_found == is_told or doubt > CLEAR:
            return is_told
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "config.json has the checkpoint_format %r, but the zero points of %s are stored "
                "as in %r; each layer is read as its zero points are stored",
                self.options.checkpoint_format, module, LESS_ONE if is_found else AS_THEY_ARE,
            )  # fmt: skip
        return is_found

    def _suspect(self, distance: float, bits: int) -> None:
        """Warn if the zero points of several layers look as if the config is wrong about them."""
        self._distances.append(distance)
        is_told = self.options.checkpoint_format == LESS_ONE
        mean = sum(self._distances) / len(self._distances)
        if len(self._distances) < SUSPICIOUS_LAYERS or abs(mean - (not is_told)) > CLEAR:
            return
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "config.json has the checkpoint_format %r, and the zero points of %d layers look "
                "as if they are stored as in %r; with %d bits that is not certain, so the layers "
                "are read as the config says: if completions are wrong, correct it",
                self.options.checkpoint_format, len(self._distances),
                AS_THEY_ARE if is_told else LESS_ONE, bits,
            )  # fmt: skip


def _groups(stored: Tensor | None, num_groups: int, group_size: int, name: str) -> Tensor | None:
    """Return the group of each input; None: groups are consecutive.

    Raises:
        CheckpointCorruptError: There are no such groups.
    """
    if stored is None:
        return None
    groups = check_groups(stored, num_groups, name)
    in_order = torch.arange(len(groups)) // group_size
    return None if torch.equal(groups, in_order) else groups
