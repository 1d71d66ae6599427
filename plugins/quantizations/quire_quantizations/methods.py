"""The methods that a user can name; each says what layers keep of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from quire.errors import RefusedError, SettingsError
from quire.interfaces.quantization import LinearMethod, Quantization
from quire.machine.instruction_sets import InstructionSet, cpu_flags, here
from quire_quantizations import linear_library as library
from quire_quantizations.formats import BFLOAT16, BFLOAT16_DOT, FLOAT32, INT4, INT8, Format
from quire_quantizations.packed_linear import PackedLinear
from quire_quantizations.packed_memory import PackedMemory

HEAD = "lm_head"
DOT_SET, DOT_FLAG = "avx512", "avx512_bf16"  # what products of pairs need


class PackedWeights(Quantization):
    """What those below share.

    Attributes:
        keeping: What linear layers keep of each number.
        head: What the language-model head keeps, and with it an embedding that is tied to it.

    Args:
        may_round: Bfloat16 may be kept of wider tensors.
    """

    keeping: ClassVar[Format]
    head: ClassVar[Format]

    def __init__(self, may_round: bool = True) -> None:
        self.may_round = may_round
        self._memory = PackedMemory()

    @classmethod
    def begin_loading(cls) -> None:
        """Start to compile."""
        library.LIBRARY.begin()

    @classmethod
    def end_loading(cls) -> None:
        """Wait for the compiler."""
        library.LIBRARY.load()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> PackedWeights:
        """Take no options.

        Raises:
            SettingsError: There are some.
        """
        if config:
            raise SettingsError(
                f"{cls.__name__} takes no options, got {', '.join(sorted(config))}; it keeps the "
                "weights of ordinary checkpoints only"
            )
        return cls()

    def lossless(self) -> PackedWeights:
        """Return the same that keeps a layer in float32 if a tensor is wider than bfloat16."""
        return type(self)(may_round=False)

    def linear_method(self, module_name: str) -> LinearMethod:
        """Return how the named layer keeps its weight."""
        is_head = module_name == HEAD
        keeping = self.head if is_head else self.keeping
        return PackedLinear(keeping, self._memory, has_rows=is_head, may_round=self.may_round)


class BFloat16Weights(PackedWeights):
    """Weights in bfloat16: exactly what a bfloat16 checkpoint has."""

    keeping = head = BFLOAT16


class BFloat16Products(PackedWeights):
    """Weights in bfloat16, and what they are multiplied with is rounded to it.

    Two products are then one instruction of processors that have it.
    """

    keeping = head = BFLOAT16_DOT

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> PackedWeights:
        """Take no options.

        Raises:
            RefusedError: This processor has no such instruction, or must not use it.
            SettingsError: There are options.
        """
        chosen = here()
        name = chosen.name if isinstance(chosen, InstructionSet) else chosen
        if DOT_FLAG not in cpu_flags() or name != DOT_SET:
            raise RefusedError(
                f"bf16_dot needs a processor that reports {DOT_FLAG}, and kernels for {DOT_SET} "
                f"(they are for: {name}); bf16 keeps the same weights and multiplies them anywhere"
            )
        return super().from_config(config)


class Float32Weights(PackedWeights):
    """Weights in float32: exactly what any checkpoint has."""

    keeping = head = FLOAT32


class Int8Weights(PackedWeights):
    """Eight bits a weight, and a scale for 128 of them."""

    keeping = head = INT8


class Int4Weights(PackedWeights):
    """Four bits a weight, and a scale for 32 of them; the head, which decides, has eight."""

    keeping = INT4
    head = INT8
