"""Quantization methods by name: the weight formats of linear layers and of the LM head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from quire.errors import SettingsError
from quire.interfaces.quantization import LinearMethod, Quantization
from quire_quantizations.coded_linear import CodedLinear
from quire_quantizations.formats import (
    BFLOAT16,
    BFLOAT16_DOT,
    FLOAT16,
    FLOAT32,
    INT4,
    INT4_DOT,
    INT8,
    INT8_DOT,
    Format,
    Inputs,
)
from quire_quantizations.packed_linear import PackedLinear
from quire_quantizations.packed_memory import PackedMemory

HEAD = "lm_head"


class PackingMethod(Quantization):
    """Base class of the methods of this package.

    Args:
        may_round: Whether wider tensors may be stored as bfloat16.
    """

    def __init__(self, may_round: bool = True) -> None:
        self.may_round = may_round
        self._memory = PackedMemory()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the method, which takes no options.

        Raises:
            SettingsError: There are options.
        """
        if config:
            raise SettingsError(
                f"{cls.__name__} takes no options, got {', '.join(sorted(config))}; it only "
                "packs the weights of unquantized checkpoints"
            )
        return cls()

    def lossless(self) -> Self:
        """Return the method with wider formats for layers that need them."""
        return type(self)(may_round=False)


class PackedWeights(PackingMethod):
    """Base class of the methods that convert the weights of plain checkpoints.

    Attributes:
        weight_format: Format of the weights of linear layers.
        head: Format of the weight of the LM head, and of an embedding that is tied to it.
    """

    weight_format: ClassVar[Format]
    head: ClassVar[Format]

    def linear_method(self, module_name: str) -> LinearMethod:
        """Return the linear method of the named layer."""
        is_head = module_name == HEAD
        weight_format = self.head if is_head else self.weight_format
        return PackedLinear(weight_format, self._memory, has_rows=is_head, may_round=self.may_round)


class BFloat16Products(PackedWeights):
    """Weights in bfloat16, with inputs rounded to bfloat16.

    On processors with avx512_bf16, two products are then one instruction.
    """

    weight_format = head = BFLOAT16_DOT

    def for_dtype(self, dtype: str) -> BFloat16Products:
        """Return the method, which rounds inputs in any compute dtype."""
        del dtype
        return self


class BFloat16Weights(PackedWeights):
    """Weights in bfloat16: the exact values of a bfloat16 checkpoint."""

    weight_format = head = BFLOAT16

    def for_dtype(self, dtype: str) -> BFloat16Products:
        """Return the method with inputs of products rounded to bfloat16."""
        del dtype
        return BFloat16Products(self.may_round)


class Float16Weights(PackedWeights):
    """Weights in float16: the exact values of a float16 checkpoint.

    A layer with others is stored in bfloat16 or float32, without rounding.
    """

    weight_format = head = FLOAT16

    def __init__(self, may_round: bool = False) -> None:
        super().__init__(may_round)


class Float32Weights(PackedWeights):
    """Weights in float32: the exact values of any checkpoint."""

    weight_format = head = FLOAT32


class Int8Products(PackedWeights):
    """Eight bits per weight, one scale per 128 weights, and inputs quantized likewise."""

    weight_format = head = INT8_DOT


class Int8Weights(PackedWeights):
    """The weights of `Int8Products`, multiplied in float32."""

    weight_format = head = INT8


class Int4Products(PackedWeights):
    """Four bits per weight, one scale per 32 weights, inputs of 8 bits; the LM head is int8."""

    weight_format = INT4_DOT
    head = INT8_DOT


class Int4Weights(PackedWeights):
    """The weights of `Int4Products`, multiplied in float32."""

    weight_format = INT4
    head = INT8


class CheckpointCodes(PackingMethod):
    """The codes and scales of a quantized checkpoint, with other weights as in a plain one.

    Attributes:
        has_int8_inputs: Whether the inputs of integers are rounded to 8 bits, whatever the
            checkpoint was made for.

    Args:
        may_round: Whether other weights may be rounded to the compute dtype.
        inputs: Compute dtype.
    """

    has_int8_inputs: ClassVar[bool] = False

    def __init__(self, may_round: bool = True, inputs: Inputs = "float32") -> None:
        super().__init__(may_round)
        self.inputs: Inputs = inputs

    def for_dtype(self, dtype: str) -> Self:
        """Return the method with inputs of products rounded to bfloat16."""
        del dtype
        return type(self)(self.may_round, "bfloat16")

    def lossless(self) -> Self:
        """Return the method with wider formats for layers that need them."""
        return type(self)(may_round=False, inputs=self.inputs)

    def linear_method(self, module_name: str) -> LinearMethod:
        """Return the linear method, which is the same for all layers."""
        del module_name
        return CodedLinear(
            self._memory,
            inputs=self.inputs,
            has_int8_inputs=self.has_int8_inputs,
            may_round=self.may_round and self.inputs != "float32",
        )


class CheckpointCodesInt8(CheckpointCodes):
    """The weights of `CheckpointCodes`; integers are multiplied by inputs of 8 bits."""

    has_int8_inputs = True
