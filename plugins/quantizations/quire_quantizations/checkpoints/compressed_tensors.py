"""Checkpoints of compressed-tensors: integers and floats of 4 to 8 bits, packed or not.

A linear layer of N outputs and K inputs has `weight_scale`, and

    pack-quantized         weight_packed int32 [N, K * bits / 32], the lowest bits first;
                           weight_shape [2]; weight_zero_point int32 [N * bits / 32, G]
    int-, float-quantized  weight int8 or float8 [N, K]; weight_zero_point int8, as the scale
    mxfp8-quantized        weight float8 [N, K], scales that are powers of two
    mxfp4-, nvfp4-packed   weight_packed uint8 [N, K / 2]; weight_global_scale [1] of nvfp4

Scales are for the whole weight `[1]`, for outputs `[N, 1]`, for groups of inputs `[N, G]` or for
blocks. Packed integers are stored with `2^(bits - 1)` added, and so are their zero points;
`w = (q - z) * scale`. The scheme of a layer is the likeliest one by its name that its tensors fit.
Layers that `ignore` excludes have ordinary weights. Scales of inputs are not used: a product whose
inputs are quantized does it by their own values. Those of outputs of `k_proj` and `v_proj` are for
a float8 KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Read, Tensors
from quire.interfaces.quantization import PreparedQuantization
from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.checkpoints.configs.compressed_tensors_config import (
    METHOD,
    PACK_QUANTIZED,
    CompressedTensorsConfig,
    Scheme,
)
from quire_quantizations.checkpoints.mxfp4 import checked_scales
from quire_quantizations.checkpoints.unpacking import WORD_BITS, unpacked, unpacked_words
from quire_quantizations.checkpoints.weight_parts import (
    FLOATS,
    WEIGHT,
    check_finite,
    check_groups,
    check_part,
    check_positive,
    check_scaled,
    in_file,
    integers,
    modules_with,
    part,
    with_weights,
    without,
)
from quire_quantizations.number_tables import e2m1_table, float8_table

PACKED, SCALES, ZEROS = ".weight_packed", ".weight_scale", ".weight_zero_point"
SHAPE, GROUPS, WHOLE = ".weight_shape", ".weight_g_idx", ".weight_global_scale"
OTHERS = (SCALES, ZEROS, SHAPE, GROUPS, WHOLE)
NOT_USED = (
    ".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".q_scale",
)  # fmt: skip
OF_CACHE = (".k_scale", ".v_scale", ".k_zero_point", ".v_zero_point")
OF_KEYS, OF_VALUES = ".k_proj.output_scale", ".v_proj.output_scale"  # before version 0.12
BYTES = ("I8", "F8_E4M3")
WHOLE_NUMBERS = ("I64", "I32")
UNPACKED_ZEROS = ("I8", "I32", "I64")
POWERS, FLOAT8 = "U8", "F8_E4M3"  # dtypes of scales
NO_GROUP = -1  # of all inputs: groups are consecutive

Decode = Callable[..., QuantizedWeight]


class CompressedTensors(PreparedQuantization):
    """Reader of checkpoints of compressed-tensors.

    Args:
        options: Options of the checkpoint.
    """

    def __init__(self, options: CompressedTensorsConfig) -> None:
        self.options = options

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CompressedTensors:
        """Read the options, whose errors are those of `CompressedTensorsConfig.read`."""
        return cls(CompressedTensorsConfig.read(config))

    def read(self, tensors: Tensors, read: Read) -> dict[str, CheckpointTensor]:
        """Return the tensors with a weight in place of the parts of each quantized layer."""
        packed = list(modules_with(tensors, PACKED))
        in_bytes = _modules_in_bytes(tensors)
        ends = (PACKED, WEIGHT, *OTHERS)
        parts = {module + end for module in (*packed, *in_bytes) for end in ends}
        weights = {module + WEIGHT: self._in_bytes(module, tensors) for module in in_bytes}
        for module in packed:
            is_float = tensors[module + PACKED].stored[0].dtype == "U8"
            weights[module + WEIGHT] = (
                self._floats(module, tensors) if is_float else self._integers(module, tensors, read)
            )
        if not self.options.schemes and not weights:
            found = without(tensors, parts)  # of which only the cache is quantized
        else:
            found = with_weights(tensors, parts, weights, METHOD)
        return self._of_outputs(found)

    def _of_outputs(self, tensors: dict[str, CheckpointTensor]) -> dict[str, CheckpointTensor]:
        """Return the tensors without scales of inputs and outputs, but with those of the cache."""
        kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(NOT_USED)}
        if not self.options.has_float8_cache:
            return {name: one for name, one in kept.items() if not name.endswith(OF_CACHE)}
        for side in (OF_KEYS, OF_VALUES):
            for module in modules_with(tensors, side):
                name = f"{module}{side.replace('output', side[1])}"
                kept[name] = replace(tensors[module + side], name=name)
        return kept

    def _integers(self, module: str, tensors: Tensors, read: Read) -> CheckpointTensor:
        """Return a weight of packed integers."""
        codes = tensors[module + PACKED]
        check_part(codes, ("I32",), (None, None), PACK_QUANTIZED)
        shape = part(tensors, module + SHAPE, codes)
        check_part(shape, WHOLE_NUMBERS, (2,), PACK_QUANTIZED)
        outputs, inputs = (int(size) for size in read(shape.stored[0]))
        scales = part(tensors, module + SCALES, codes)
        schemes, is_stream = self._packing(module, codes, outputs, inputs)
        parts = _Parts(module, outputs, inputs, scales, schemes)
        zeros, groups = tensors.get(module + ZEROS), tensors.get(module + GROUPS)
        if zeros is None and not parts.scheme.is_symmetric:
            zeros = part(tensors, module + ZEROS, codes)
        bits = parts.scheme.num_bits
        if zeros is not None and zeros.stored[0].dtype == "I32":
            words = _words(outputs, bits, is_stream=is_stream)
            check_part(zeros, ("I32",), (words, parts.num_groups), PACK_QUANTIZED)
        elif zeros is not None:
            parts.check_zeros(zeros)
        if groups is None and parts.scheme.is_ordered and parts.num_groups > 1:
            groups = part(tensors, module + GROUPS, codes)
        if groups is not None:
            check_part(groups, WHOLE_NUMBERS, (inputs,), PACK_QUANTIZED)
        return parts.weight(
            (codes, zeros, groups),
            partial(
                _decoded_integers, name=in_file(groups or codes), bits=bits, is_stream=is_stream
            ),
        )

    def _packing(
        self, module: str, codes: CheckpointTensor, outputs: int, inputs: int
    ) -> tuple[list[Scheme], bool]:
        """Return the schemes whose integers are packed so, and whether they straddle words."""
        schemes = self.options.schemes_of(module, is_float=False)
        for bits in dict.fromkeys(scheme.num_bits for scheme in schemes):
            for is_stream in (True, False):
                if codes.shape == (outputs, _words(inputs, bits, is_stream=is_stream)):
                    return [one for one in schemes if one.num_bits == bits], is_stream
        raise CheckpointCorruptError(
            f"tensor {in_file(codes)} has shape {list(codes.shape)}, which is not that of a "
            f"weight {[outputs, inputs]} ({module}{SHAPE}) with the "
            f"num_bits of quantization_config in config.json: {self.options}; correct it, or copy "
            "the checkpoint completely"
        )

    def _in_bytes(self, module: str, tensors: Tensors) -> CheckpointTensor:
        """Return a weight of int8 or float8."""
        known = next(tensors[module + end] for end in (WEIGHT, *OTHERS) if module + end in tensors)
        is_packed = any(scheme.is_packed for scheme in self.options.schemes)
        end = WEIGHT if module + WEIGHT in tensors or not is_packed else PACKED
        codes = part(tensors, module + end, known)
        check_part(codes, BYTES, (None, None), f"a weight with {module}{SCALES}")
        outputs, inputs = codes.shape
        scales = part(tensors, module + SCALES, codes)
        is_float = codes.stored[0].dtype != "I8"
        bits = 8 if is_float else None
        schemes = self.options.schemes_of(module, is_float=is_float, num_bits=bits)
        parts = _Parts(module, outputs, inputs, scales, schemes)
        zeros = None if is_float else tensors.get(module + ZEROS)
        if zeros is None and not is_float and not parts.scheme.is_symmetric:
            zeros = part(tensors, module + ZEROS, codes)
        if zeros is not None:
            parts.check_zeros(zeros)
        return parts.weight((codes, zeros, None), partial(_decoded_bytes, name=in_file(codes)))

    def _floats(self, module: str, tensors: Tensors) -> CheckpointTensor:
        """Return a weight of 4-bit floats."""
        codes = tensors[module + PACKED]
        check_part(codes, ("U8",), (None, None), "fp4")
        outputs, inputs = codes.shape[0], codes.shape[1] * 2
        scales = part(tensors, module + SCALES, codes)
        check_part(scales, (POWERS, FLOAT8), (outputs, None), "fp4")
        whole = None
        if scales.stored[0].dtype == FLOAT8:
            whole = part(tensors, module + WHOLE, codes)
            check_part(whole, FLOATS, (1,), "nvfp4")
        schemes = self.options.schemes_of(module, is_float=True, num_bits=4)
        parts = _Parts(module, outputs, inputs, scales, schemes)
        return parts.weight(
            (codes, whole, None), partial(_decoded_floats, name=in_file(whole or codes))
        )


class _Parts:
    """Scales of one weight, and the division into groups that they have.

    Args:
        module: Module path of the layer.
        outputs: Number of outputs of the weight.
        inputs: Number of its inputs.
        scales: Scales.
        schemes: Schemes that it may have, the likeliest first.

    Raises:
        CheckpointCorruptError: The scales do not fit the weight by any scheme.
    """

    def __init__(
        self,
        module: str,
        outputs: int,
        inputs: int,
        scales: CheckpointTensor,
        schemes: Sequence[Scheme],
    ) -> None:
        self.module = module
        self.shape = (outputs, inputs)
        self.scales = scales
        check_part(scales, (*FLOATS, POWERS, FLOAT8), (None,) * len(scales.shape), METHOD)
        fitting = ((one, one.block_of(self.shape, scales.shape)) for one in schemes)
        for scheme, block in fitting:
            if block is not None:
                self.scheme, self.block = scheme, block
                return
        raise CheckpointCorruptError(
            f"tensor {in_file(scales)} has shape {list(scales.shape)}, which does not fit a "
            f"weight of shape {list(self.shape)} by quantization_config in "
            f"config.json: {' or '.join(map(str, schemes)) or 'no group has such weights'}; "
            "correct it, or copy the checkpoint completely"
        )

    @property
    def num_groups(self) -> int:
        """Number of groups of inputs."""
        return -(-self.shape[1] // self.block[1])

    def weight(
        self,
        others: tuple[CheckpointTensor, CheckpointTensor | None, CheckpointTensor | None],
        decode: Decode,
    ) -> CheckpointTensor:
        """Return the weight, computed from its codes, scales, zero points and groups of inputs."""
        codes, *rest = others
        given = [tensor is not None for tensor in rest]
        stored = [codes, self.scales, *(tensor for tensor in rest if tensor is not None)]

        def compute(codes: Tensor, scales: Tensor, *others: Tensor) -> QuantizedWeight:
            found = iter(others)
            zeros, groups = (next(found) if is_given else None for is_given in given)
            factors = _per_group(self._floats(scales), self.shape[0], self.block)
            weight = decode(codes, factors, zeros, groups, shape=self.shape, block=self.block)
            return replace(weight, has_int8_inputs=self.scheme.has_int8_inputs)

        return CheckpointTensor(
            self.module + WEIGHT,
            self.shape,
            tuple(tensor.stored[0] for tensor in stored),
            compute,
            is_quantized=True,
        )

    def check_zeros(self, zeros: CheckpointTensor) -> None:
        """Check that zero points which are not packed have the shape of the scales.

        Raises:
            CheckpointCorruptError: They have another one, or another dtype.
        """
        check_part(zeros, UNPACKED_ZEROS, (None,) * len(zeros.shape), "compressed-tensors")
        if _without_ones(zeros.shape) != _without_ones(self.scales.shape):
            check_part(zeros, UNPACKED_ZEROS, self.scales.shape, "compressed-tensors")

    def _floats(self, scales: Tensor) -> Tensor:
        if self.scales.stored[0].dtype == POWERS:
            return checked_scales(scales, in_file(self.scales))
        is_float = self.scheme.is_float
        return (check_positive if is_float else check_finite)(scales, in_file(self.scales))


def _modules_in_bytes(tensors: Tensors) -> dict[str, None]:
    """Return the module paths of weights that are not packed, by their dtype or other parts."""
    by_dtype = (
        module
        for module in modules_with(tensors, WEIGHT)
        if tensors[module + WEIGHT].stored[0].dtype in BYTES
        and len(tensors[module + WEIGHT].shape) == 2
    )
    by_parts = (module for end in OTHERS for module in modules_with(tensors, end))
    every = (*by_dtype, *by_parts)
    return {module: None for module in every if module + PACKED not in tensors}


def _words(count: int, bits: int, *, is_stream: bool) -> int:
    """Return the number of words of packed integers, which straddle words in a stream."""
    return -(-count * bits // WORD_BITS) if is_stream else -(-count // (WORD_BITS // bits))


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _per_group(values: Tensor, outputs: int, block: tuple[int, int]) -> Tensor:  # [N, G]
    """Return a value for each output and group of inputs, given those of blocks."""
    per_block = values.reshape(-(-outputs // block[0]), -1)
    return per_block.repeat_interleave(block[0], 0)[:outputs]


def _decoded_integers(
    packed: Tensor,
    scales: Tensor,  # [N, G]
    zeros: Tensor | None,
    groups: Tensor | None,
    *,
    shape: tuple[int, int],
    block: tuple[int, int],
    name: str,
    bits: int,
    is_stream: bool,
) -> QuantizedWeight:
    outputs, inputs = shape
    unpack = unpacked if is_stream else unpacked_words
    middle = 1 << (bits - 1)
    points: Tensor | None = None
    if zeros is not None and zeros.dtype == torch.int32:
        points = unpack(zeros.T.contiguous(), bits)[:, :outputs].T.float()
    elif zeros is not None:
        points = _per_group(zeros.float(), outputs, block) + middle
    return QuantizedWeight(
        codes=unpack(packed, bits)[:, :inputs],
        scales=scales,
        table=integers(2 * middle, middle if points is None else 0),
        group_size=block[1],
        offsets=None if points is None else -points * scales,
        groups=_order(groups, scales.shape[1], name),
    )


def _order(groups: Tensor | None, num_groups: int, name: str) -> Tensor | None:
    """Return the group of each input; None: they are consecutive, as if all are -1.

    Raises:
        CheckpointCorruptError: There are no such groups.
    """
    if groups is None or not len(groups) or bool((groups == NO_GROUP).all()):
        return None
    return check_groups(groups, num_groups, name)


def _decoded_bytes(
    weight: Tensor,  # [N, K] int8 or float8
    scales: Tensor,  # [N, G]
    zeros: Tensor | None,
    groups: None,
    *,
    shape: tuple[int, int],
    block: tuple[int, int],
    name: str,
) -> QuantizedWeight:
    del groups
    has_zeros = zeros is not None and bool(zeros.any())
    points = _per_group(zeros.float(), shape[0], block) if zeros is not None and has_zeros else None
    is_integer = weight.dtype == torch.int8
    codes = weight.view(torch.uint8)
    found = QuantizedWeight(
        codes=codes ^ 128 if is_integer else codes,
        scales=scales,
        table=integers(256, 128) if is_integer else float8_table(weight.dtype),
        group_size=block[1],
        offsets=None if points is None else -points * scales,
    )
    return found if is_integer else check_scaled(found, name)


def _decoded_floats(
    packed: Tensor,  # [N, K / 2] uint8
    scales: Tensor,  # [N, G]
    whole: Tensor | None,
    groups: None,
    *,
    shape: tuple[int, int],
    block: tuple[int, int],
    name: str,
) -> QuantizedWeight:
    del shape, groups
    if whole is not None:
        scales = check_positive(scales / check_positive(whole, name), name)
    return QuantizedWeight(
        codes=unpacked(packed, 4),
        scales=scales,
        table=e2m1_table(),
        group_size=block[1],
    )
