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
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class QuantizationCapabilities:
    """What a method declares at registration."""

    devices: frozenset[str]
    dtypes: frozenset[str]
    from_plain_checkpoint: bool = False  # can quantize ordinary weights while they load


class LinearMethod(ABC):
    """How one linear layer keeps its weight."""

    @abstractmethod
    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register the parameters of the layer."""

    @abstractmethod
    def finish_loading(self, layer: nn.Module) -> None:
        """Repack, once every slice is loaded."""

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

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Quantization:
        """Read the checkpoint's `quantization_config`."""

    @abstractmethod
    def linear_method(self, module_name: str) -> LinearMethod | None:
        """Return how the named layer keeps its weight; None: as it is."""
