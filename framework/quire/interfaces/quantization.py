"""The interface of a quantization method: reading of quantized checkpoints, storage of weights.

A method does one or both of two things:

* A `PreparedQuantization` reads checkpoints whose `quantization_config` names it. It says which
  tensors of the files make up a weight, and decodes them to a `QuantizedWeight`.
* Any `Quantization` may store the weight of a linear layer and multiply by it. A layer of
  `quire.layers` creates its parameters through the method, loads checkpoint slices into them, and
  computes with it. The method handles one weight at a time, which is already this device's shard,
  with merged slices in order.

A quantized weight is stored by a method with `stores_quantized`, whatever format it was read from.
Where none can be used here, it is dequantized while it is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.interfaces.checkpoint_tensors import CheckpointTensor, Read, Tensors
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.interfaces.reference import check_reference

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class QuantizationCapabilities:
    """Capabilities of a method, declared at registration.

    Attributes:
        devices: Supported device types.
        dtypes: Supported dtypes of hidden states. They are the compute dtype, and with native
            kernels always float32.
        product_dtypes: Compute dtypes narrower than hidden states, in which the method multiplies
            them: `Quantization.for_dtype` returns its variant.
        from_plain_checkpoint: True if it can quantize an unquantized checkpoint during loading.
        reads_prepared: True if it reads checkpoints whose `quantization_config` names it; it is
            then a `PreparedQuantization`.
        may_be_requantized: True if models are published in this format alone, so that the user may
            quantize their weights anew. Weights of other formats would be rounded twice.
        stores_quantized: True if its linear methods keep the codes of a `QuantizedWeight`.
        lossless_for: Dtypes of unquantized checkpoints that it stores without loss; `auto` may
            choose it for those.
        kernels: Supported values of `LayerContext.kernels`; None: any.
        weight_bits: Bits per weight of a linear layer for estimates, scales included; None: as in
            the compute dtype.
        head_bits: Bits per weight of the LM head; None: `weight_bits`.
        describe: For a reader: import string of a torch-free function of a checkpoint's
            `quantization_config`, which checks it and returns the `WeightCodes` of its groups of
            layers. It is called when an engine is planned. None: options are checked when it is
            built, and estimates use `weight_bits`.
        bits_of_codes: For a method with `stores_quantized`: import string of a torch-free function
            of `WeightCodes`, or None for a weight that is not quantized, and of the checkpoint's
            dtype. It returns the bits of a weight, scales included, or None: as in the compute
            dtype. Without it, estimates use `weight_bits` and `head_bits`.
        probe: Import string of a function without arguments that prepares what the method runs,
            such as compiled kernels, and returns the reason why this machine cannot run it, or
            None. It runs before the choice is final, in a thread, and must not import torch.
        uses_weight_pages: True if packed weights are in `quire.machine.pages.WEIGHT_PAGES`, whose
            pages are then allocated while torch is imported.
        priority: Rank for `auto`, which takes the supporting method with the highest one.
        deprecated: What to use instead of the method, if its name will be removed; None: the name
            stays.
    """

    devices: frozenset[str]
    dtypes: frozenset[str]
    product_dtypes: frozenset[str] = frozenset()
    from_plain_checkpoint: bool = False
    reads_prepared: bool = True
    may_be_requantized: bool = False
    stores_quantized: bool = False
    lossless_for: frozenset[str] = frozenset()
    kernels: frozenset[str] | None = None
    weight_bits: float | None = None
    head_bits: float | None = None
    describe: str | None = None
    bits_of_codes: str | None = None
    probe: str | None = None
    uses_weight_pages: bool = False
    priority: int = 0
    deprecated: str | None = None

    def __post_init__(self) -> None:
        references = {
            "probe": self.probe, "describe": self.describe, "bits_of_codes": self.bits_of_codes,
        }  # fmt: skip
        for name, reference in references.items():
            if reference is not None:
                check_reference(reference, f"a quantization method's {name}")


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """Settings of the layers that a method stores weights for.

    Attributes:
        dtype: Compute dtype.
        device: Device of weights and rows.
        batch_invariant: Whether a row's bits must not depend on the rest of the batch.
    """

    dtype: torch.dtype
    device: torch.device
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """Weight of one expert in a product of the rows of several experts.

    Attributes:
        method: Method that stores the weight.
        layer: Layer that the method's parameters are registered with.
        bias: `[out]`, or None.
    """

    method: LinearMethod
    layer: nn.Module
    bias: Tensor | None


class LinearMethod(ABC):
    """Storage and matrix product of one linear layer's weight.

    Attributes:
        has_rows: True if `rows` is implemented, so that an embedding may share the weight.
        is_batch_invariant: True if a row of a product has the same bits in any batch. It is read
            after `finish_loading`, which may set it.
    """

    has_rows: bool = False
    is_batch_invariant: bool = False

    @abstractmethod
    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register the parameters of the layer.

        A method for unquantized checkpoints registers `weight`, `[out_features, in_features]`.
        """

    def expect(self, layer: nn.Module, dtype: torch.dtype) -> None:  # noqa: B027
        """Prepare for the next slice of the checkpoint, whose tensor has this dtype.

        A method may then hold `weight` in another dtype until it is packed.
        """

    def load(self, layer: nn.Module, weight: Tensor, first_row: int) -> None:
        """Load a slice of an unquantized checkpoint, already cut to this device's shard.

        The default announces its dtype by `expect`, and copies it to `weight`. The slice may be a
        view of a memory-mapped file; it stays valid, so a method that packs can keep it until all
        slices are there.

        Args:
            layer: Layer that the method's parameters are registered with.
            weight: Some rows of the weight, all columns.
            first_row: Index of the first one in the layer's weight.
        """
        self.expect(layer, weight.dtype)
        layer.get_parameter("weight")[first_row : first_row + len(weight)].copy_(weight)

    def load_quantized(self, layer: nn.Module, weight: QuantizedWeight, first_row: int) -> None:
        """Load a slice that the checkpoint has quantized, already cut to this device's shard.

        The default dequantizes it. A method that `stores_quantized` keeps it until all slices are
        there. The parameters are those of `load`.
        """
        self.load(layer, weight.dequantized(), first_row)

    @abstractmethod
    def finish_loading(self, layer: nn.Module) -> None:
        """Repack the weight after every slice is loaded."""

    def rows(
        self,
        layer: nn.Module,
        token_ids: Tensor,  # [T] int64
    ) -> Tensor:  # [T, in]
        """Return rows of the weight in the compute dtype, for an embedding that shares it.

        Called after `finish_loading`, and only if `has_rows` is True; otherwise the weight of a
        tied embedding and head is not quantized.
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
        """Compute `x @ weight.T + bias`. Override to fuse the addition into the product."""
        return self.apply(layer, x).add_(bias)

    def grouped_product(self, weights: Sequence[GroupedWeight]) -> GroupedProduct | None:
        """Return one product with the weights of several experts, each for its own rows.

        Called after `finish_loading` of all of them, on the first one's method. None, the default:
        the experts' products are computed one after another, and the step cannot be captured.
        """
        del weights
        return None


GroupedProduct = Callable[["Tensor", "Tensor"], "Tensor"]
"""Function of rows `[S, in]`, sorted by expert, and of the number of rows up to and including each
expert's, `[E]` int64. It returns `[S, out]`; rows behind the last expert's are undefined."""


class Quantization(ABC):
    """A method, configured by the checkpoint's `quantization_config` or by the user."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: Mapping[str, Any]) -> Quantization:
        """Read the checkpoint's `quantization_config`; empty if the user named the method."""

    def for_dtype(self, dtype: str) -> Quantization:
        """Return a variant of the method that rounds the inputs of products to a compute dtype.

        Both inputs are rounded, the weight and the hidden states, and sums are float32. Called if
        hidden states are wider than the compute dtype, for one of
        `QuantizationCapabilities.product_dtypes`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no products in {dtype}")

    def lossless(self) -> Quantization:
        """Return a variant of the method that is lossless for tensors of any dtype.

        Called if `auto` chose the method by the dtype in the checkpoint's config: a file may hold
        tensors of a wider dtype. A method that is lossless for every dtype returns itself.
        """
        return self

    def for_layers(self, settings: LayerSettings) -> Quantization:
        """Return the method for layers of these settings; called before `linear_method`.

        A method for one device and one compute dtype returns itself.
        """
        del settings
        return self

    @abstractmethod
    def linear_method(self, module_name: str) -> LinearMethod | None:
        """Return the method for the named layer's weight; None: it is not quantized."""


class PreparedQuantization(Quantization):
    """A method that reads checkpoints whose `quantization_config` names it.

    What is quantized is decided by the tensors of the files. A layer that the config excludes has
    an ordinary `weight`, and is left as it is.
    """

    def linear_method(self, module_name: str) -> LinearMethod | None:
        """Return None: another method stores what this one has read."""
        del module_name
        return None

    @abstractmethod
    def read(self, tensors: Tensors, read: Read) -> dict[str, CheckpointTensor]:
        """Return the tensors of a checkpoint, with a weight in place of the parts of each.

        Dtypes and shapes of the parts are checked here, before any weight is read. A weight has the
        name that it has in an unquantized checkpoint of the model; tensors that are not parts of
        weights stay, and those that the model does not need are left out.

        Args:
            tensors: Tensors of the checkpoint by name.
            read: Function that reads a stored tensor, for small ones with shapes or options.

        Raises:
            CheckpointCorruptError: Parts are missing, or have wrong dtypes or shapes.
        """
