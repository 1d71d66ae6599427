"""The interface of a quantization method: how a linear layer keeps and uses its weight.

A layer of `quire.layers` creates its parameters through the method, loads checkpoint slices into
them, and computes through it. The method sees one weight at a time, already cut to this device's
share, with the merged slices in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class QuantizationCapabilities:
    """What a method declares at registration.

    Attributes:
        devices: Where it computes.
        dtypes: Compute types that it serves.
        from_plain_checkpoint: It can keep ordinary weights in its own way while they load.
        reads_prepared: It reads checkpoints whose `quantization_config` names it.
        lossless_for: Types of an ordinary checkpoint whose numbers it keeps as they are; `auto`
            may choose it for those.
        kernels: What layers must run so that it can serve; None: anything.
        weight_bits: Bits of a weight of a linear layer, with scales and all, for estimates; None:
            as many as the compute type has.
        head_bits: The same of the layer that makes logits; None: `weight_bits`.
        priority: `auto` takes the highest among those that can serve.
    """

    devices: frozenset[str]
    dtypes: frozenset[str]
    from_plain_checkpoint: bool = False
    reads_prepared: bool = True
    lossless_for: frozenset[str] = frozenset()
    kernels: frozenset[str] | None = None
    weight_bits: float | None = None
    head_bits: float | None = None
    priority: int = 0


class LinearMethod(ABC):
    """How one linear layer keeps its weight.

    Attributes:
        has_rows: It has `rows`, so an embedding may share the weight.
        is_batch_invariant: A row of a product has the same bits whatever rows are beside it. It is
            read after `finish_loading`, which may have found out.
    """

    has_rows: bool = False
    is_batch_invariant: bool = False

    @abstractmethod
    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register the parameters of the layer.

        A method that takes ordinary checkpoints registers `weight`, `[out_features, in_features]`.
        """

    def expect(self, layer: nn.Module, dtype: torch.dtype) -> None:  # noqa: B027
        """Learn the type of a checkpoint's tensor that is loaded next, slice by slice.

        A method may then hold `weight` in another type until it is packed.
        """

    @abstractmethod
    def finish_loading(self, layer: nn.Module) -> None:
        """Repack, once every slice is loaded."""

    def rows(
        self,
        layer: nn.Module,
        token_ids: Tensor,  # [T] int64
    ) -> Tensor:  # [T, in]
        """Return rows of the weight in the compute type: an embedding that shares it looks them up.

        It is called after `finish_loading`, and only if `has_rows` is declared; otherwise a tied
        embedding and its head keep their weight as it is.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rows to look up")

    @abstractmethod
    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:  # [T, in] -> [T, out]
        """Compute `x @ weight.T`, without the bias."""

    def apply_with_bias(
        self,
        layer: nn.Module,
        x: Tensor,  # [T, in]
        bias: Tensor,  # [out]
    ) -> Tensor:  # [T, out]
        """Compute `x @ weight.T + bias`; a method that adds while it multiplies saves a pass."""
        return self.apply(layer, x).add_(bias)


class Quantization(ABC):
    """A method, configured by the checkpoint's `quantization_config` or by the user."""

    @classmethod  # noqa: B027 (most have nothing to start)
    def begin_loading(cls) -> None:
        """Start in the background what takes long and needs no weights, such as compiling.

        It is called once, before weights are loaded.
        """

    @classmethod  # noqa: B027
    def end_loading(cls) -> None:
        """Wait for what `begin_loading` started.

        Layers are made ready once this returns, or when too much waits for it.

        Raises:
            NativeUnavailableError: It cannot be had; layers keep their weights and compute without
                it, unless the user asked for native kernels.
        """

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Quantization:
        """Read the checkpoint's `quantization_config`; empty where the user named the method."""

    def lossless(self) -> Quantization:
        """Return the method that keeps every number, also of tensors of an unexpected type.

        `auto` chose the method by the type that the checkpoint's config names, and asks for this:
        a file may hold wider tensors. One that keeps all it is given returns itself.
        """
        return self

    @abstractmethod
    def linear_method(self, module_name: str) -> LinearMethod | None:
        """Return how the named layer keeps its weight; None: as it is."""
