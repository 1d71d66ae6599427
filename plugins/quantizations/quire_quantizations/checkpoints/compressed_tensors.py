"""Checkpoints of compressed-tensors: integers and floats of 4 to 8 bits, packed or not.

A linear layer of N outputs and K inputs has `weight_scale`, and

    pack-quantized         weight_packed int32 [N, K * bits / 32], the lowest bits first;
                           weight_shape [2]; weight_zero_point int32 [N * bits / 32, G]
    int-, float-quantized  weight int8 or float8 [N, K]; weight_zero_point int8, as the scale
    mxfp8-quantized        weight float8 [N, K], scales that are powers of two
    mxfp4-, nvfp4-packed   weight_packed uint8 [N, K / 2]; weight_global_scale [1] of nvfp4

Scales are for the whole weight `[1]`, for outputs `[N, 1]`, for groups of inputs `[N, G]` or for
blocks. Packed integers are stored with `2^(bits - 1)` added, and so are their zero points;
`w = (q - z) * scale`. Layers that `ignore` excludes have ordinary weights. Scales of inputs are for
products in 8 bits, and not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointCorruptError, RefusedError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, Read, Tensors
from quire.interfaces.quantization import PreparedQuantization
from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.checkpoints.block_fp8 import float8_table
from quire_quantizations.checkpoints.mxfp4 import e2m1_table, powers_of_two
from quire_quantizations.checkpoints.unpacking import WORD_BITS, unpacked, unpacked_words
from quire_quantizations.checkpoints.weight_parts import (
    FLOATS,
    WEIGHT,
    check_finite,
    check_part,
    group_size_of,
    integers,
    modules_with,
    part,
    without,
)

PACKED, SCALES, ZEROS = ".weight_packed", ".weight_scale", ".weight_zero_point"
SHAPE, GROUPS, WHOLE = ".weight_shape", ".weight_g_idx", ".weight_global_scale"
OF_INPUTS = (".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale")
FORMATS = (
    "dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
    "mixed-precision", "mxfp4-pack-quantized", "nvfp4-pack-quantized", "mxfp8-quantized",
)  # fmt: skip
BYTES = ("I8", "F8_E4M3")
WHOLE_NUMBERS = ("I64", "I32")
UNPACKED_ZEROS = ("I8", "I32", "I64")
POWERS, FLOAT8 = "U8", "F8_E4M3"  # dtypes of scales
BITS = range(2, 9)

Decode = Callable[..., QuantizedWeight]


class CompressedTensors(PreparedQuantization):
    """Reader of checkpoints of compressed-tensors.

    Args:
        bits: Bits of packed integers, of each group of layers.
        group_sizes: Numbers of inputs that share a scale, of each group of layers.
        blocks: Rows and columns that share a scale, of each group of layers.
        has_zeros: Whether all groups of layers have zero points.
    """

    def __init__(
        self,
        bits: list[int],
        group_sizes: list[int],
        blocks: list[tuple[int, int]],
        *,
        has_zeros: bool,
    ) -> None:
        self.bits = bits
        self.group_sizes = group_sizes
        self.blocks = blocks
        self.has_zeros = has_zeros

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CompressedTensors:
        """Read the options of the groups of layers.

        Raises:
            RefusedError: The format is not supported.
            CheckpointCorruptError: Options are not what they must be.
        """
        groups = _groups(config)
        for name in (config.get("format"), *(group.get("format") for group in groups)):
            if name is not None and name not in FORMATS:
                raise RefusedError(
                    f"quantization_config.format of config.json is {name!r}; quire reads "
                    f"{', '.join(FORMATS)}: use a checkpoint with one of those"
                )
        for key, inner in (("transform_config", "config_groups"), ("sparsity_config", "format")):
            found = _object(config.get(key), key).get(inner)
            if found and found != "dense":
                raise RefusedError(
                    f"quantization_config.{key} of config.json is not supported: use a checkpoint "
                    "without it"
                )
        weights = [_object(group.get("weights"), "config_groups: weights") for group in groups]
        return cls(
            [w["num_bits"] for w in weights if w.get("num_bits") in BITS],
            [w["group_size"] for w in weights if _is_size(w.get("group_size"))],
            [tuple(w["block_structure"]) for w in weights if _is_block(w.get("block_structure"))],
            has_zeros=bool(weights) and all(w.get("symmetric") is False for w in weights),
        )

    def read(self, tensors: Tensors, read: Read) -> dict[str, CheckpointTensor]:
        """Return the tensors with a weight in place of the parts of each quantized layer."""
        packed = list(modules_with(tensors, PACKED))
        in_bytes = [
            module
            for module in modules_with(tensors, WEIGHT)
            if tensors[module + WEIGHT].stored[0].dtype in BYTES
            and len(tensors[module + WEIGHT].shape) == 2
        ]
        ends = (PACKED, WEIGHT, SCALES, ZEROS, SHAPE, GROUPS, WHOLE)
        parts = {module + end for module in (*packed, *in_bytes) for end in ends}
        parts |= {name for name in tensors if name.endswith(OF_INPUTS)}
        weights = {module + WEIGHT: self._in_bytes(module, tensors) for module in in_bytes}
        for module in packed:
            is_float = tensors[module + PACKED].stored[0].dtype == "U8"
            weights[module + WEIGHT] = (
                self._floats(module, tensors) if is_float else self._integers(module, tensors, read)
            )
        return without(tensors, parts) | weights

    def _integers(self, module: str, tensors: Tensors, read: Read) -> CheckpointTensor:
        """Return a weight of packed integers."""
        codes = tensors[module + PACKED]
        check_part(codes, ("I32",), (None, None), "pack-quantized")
        shape = part(tensors, module + SHAPE, codes)
        check_part(shape, WHOLE_NUMBERS, (2,), "pack-quantized")
        outputs, inputs = (int(size) for size in read(shape.stored[0]))
        bits, is_stream = self._packing(codes, outputs, inputs)
        scales = part(tensors, module + SCALES, codes)
        parts = _Parts(module, outputs, inputs, scales)
        zeros, groups = tensors.get(module + ZEROS), tensors.get(module + GROUPS)
        if zeros is None and self.has_zeros:
            zeros = part(tensors, module + ZEROS, codes)
        if zeros is not None and zeros.stored[0].dtype == "I32":
            words = _words(outputs, bits, is_stream=is_stream)
            check_part(zeros, ("I32",), (words, parts.num_groups(self)), "pack-quantized")
        elif zeros is not None:
            parts.check_zeros(zeros)
        if groups is not None:
            check_part(groups, WHOLE_NUMBERS, (inputs,), "pack-quantized")
        return parts.weight(
            self, (codes, zeros, groups),
            partial(_decoded_integers, bits=bits, is_stream=is_stream),
        )  # fmt: skip

    def _packing(self, codes: CheckpointTensor, outputs: int, inputs: int) -> tuple[int, bool]:
        """Return the bits of a packed integer, and whether integers straddle words."""
        for bits in self.bits:
            for is_stream in (True, False):
                if codes.shape == (outputs, _words(inputs, bits, is_stream=is_stream)):
                    return bits, is_stream
        raise CheckpointCorruptError(
            f"tensor {codes.name} in {codes.stored[0].file.name} has shape {list(codes.shape)}, "
            f"which is not that of a weight {[outputs, inputs]} with num_bits of "
            f"{' or '.join(map(str, self.bits)) or 'none'}, as quantization_config and "
            "weight_shape have it"
        )

    def _in_bytes(self, module: str, tensors: Tensors) -> CheckpointTensor:
        """Return a weight of int8 or float8."""
        codes = tensors[module + WEIGHT]
        outputs, inputs = codes.shape
        scales = part(tensors, module + SCALES, codes)
        zeros = tensors.get(module + ZEROS) if codes.stored[0].dtype == "I8" else None
        parts = _Parts(module, outputs, inputs, scales)
        if zeros is not None:
            parts.check_zeros(zeros)
        return parts.weight(self, (codes, zeros, None), _decoded_bytes)

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
        parts = _Parts(module, outputs, inputs, scales)
        decode = partial(_decoded_floats, name=module + WHOLE)
        return parts.weight(self, (codes, whole, None), decode)


class _Parts:
    """Scales of one weight, and the division into groups that they have."""

    def __init__(self, module: str, outputs: int, inputs: int, scales: CheckpointTensor) -> None:
        self.module = module
        self.shape = (outputs, inputs)
        self.scales = scales

    def weight(
        self,
        method: CompressedTensors,
        others: tuple[CheckpointTensor, CheckpointTensor | None, CheckpointTensor | None],
        decode: Decode,
    ) -> CheckpointTensor:
        """Return the weight, computed from its codes, scales, zero points and groups of inputs.

        Raises:
            CheckpointCorruptError: The scales do not fit the weight.
        """
        check_part(
            self.scales, (*FLOATS, POWERS, FLOAT8), (None,) * len(self.scales.shape),
            "compressed-tensors",
        )  # fmt: skip
        block = self._block(method)
        codes, *rest = others
        given = [tensor is not None for tensor in rest]
        stored = [codes, self.scales, *(tensor for tensor in rest if tensor is not None)]

        def compute(codes: Tensor, scales: Tensor, *others: Tensor) -> QuantizedWeight:
            found = iter(others)
            zeros, groups = (next(found) if is_given else None for is_given in given)
            factors = _per_group(self._floats(scales), self.shape[0], block)
            return decode(codes, factors, zeros, groups, shape=self.shape, block=block)

        return CheckpointTensor(
            self.module + WEIGHT,
            self.shape,
            tuple(tensor.stored[0] for tensor in stored),
            compute,
            is_quantized=True,
        )

    def num_groups(self, method: CompressedTensors) -> int:
        """Return the number of groups of inputs."""
        return -(-self.shape[1] // self._block(method)[1])

    def check_zeros(self, zeros: CheckpointTensor) -> None:
        """Check that zero points which are not packed have the shape of the scales.

        Raises:
            CheckpointCorruptError: They have another one, or another dtype.
        """
        check_part(zeros, UNPACKED_ZEROS, (None,) * len(zeros.shape), "compressed-tensors")
        if _without_ones(zeros.shape) != _without_ones(self.scales.shape):
            check_part(zeros, UNPACKED_ZEROS, self.scales.shape, "compressed-tensors")

    def _block(self, method: CompressedTensors) -> tuple[int, int]:
        """Return the rows and columns that share a scale."""
        outputs, inputs = self.shape
        shape = self.scales.shape
        if shape in ((), (1,), (1, 1)):
            return outputs, inputs
        if shape in ((outputs,), (outputs, 1)):
            return 1, inputs
        if len(shape) == 2 and shape[0] == outputs:
            sizes = [g for g in method.group_sizes if -(-inputs // g) == shape[1]]
            wanted = next(iter(sizes), next(iter(method.group_sizes), None))
            return 1, group_size_of(inputs, shape[1], wanted, self.scales)
        for rows, columns in method.blocks:
            if shape == (-(-outputs // rows), -(-inputs // columns)):
                return rows, columns
        raise CheckpointCorruptError(
            f"tensor {self.scales.name} in {self.scales.stored[0].file.name} has shape "
            f"{list(shape)}, which does not fit a weight of shape {list(self.shape)} and the "
            "strategies of quantization_config in config.json"
        )

    def _floats(self, scales: Tensor) -> Tensor:
        if self.scales.stored[0].dtype == POWERS:
            return powers_of_two(scales, self.scales.name)
        return check_finite(scales, self.scales.name)


def _groups(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the options of each group of layers."""
    groups = _object(config.get("config_groups"), "config_groups")
    return [_object(group, f"config_groups.{name}") for name, group in groups.items()]


def _object(value: object, key: str) -> Mapping[str, Any]:
    """Return an object of the options, which is empty if there is none.

    Raises:
        CheckpointCorruptError: It is something else.
    """
    if isinstance(value, Mapping):
        return value
    if value is None:
        return {}
    raise CheckpointCorruptError(
        f"quantization_config.{key} of config.json must be an object, got {value!r:.80}"
    )


def _is_size(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _is_block(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_size, value))


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
        groups=None if groups is None or (groups < 0).any() else groups.long(),
    )


def _decoded_bytes(
    weight: Tensor,  # [N, K] int8 or float8
    scales: Tensor,  # [N, G]
    zeros: Tensor | None,
    groups: None,
    *,
    shape: tuple[int, int],
    block: tuple[int, int],
) -> QuantizedWeight:
    del groups
    has_zeros = zeros is not None and bool(zeros.any())
    points = _per_group(zeros.float(), shape[0], block) if zeros is not None and has_zeros else None
    is_integer = weight.dtype == torch.int8
    codes = weight.view(torch.uint8)
    return QuantizedWeight(
        codes=codes ^ 128 if is_integer else codes,
        scales=scales,
        table=integers(256, 128) if is_integer else float8_table(weight.dtype),
        group_size=block[1],
        offsets=None if points is None else -points * scales,
    )


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
        scales = check_finite(scales / whole.float(), name)
    return QuantizedWeight(
        codes=unpacked(packed, 4),
        scales=scales,
        table=e2m1_table(),
        group_size=block[1],
    )
