"""Norms of hidden states, with the residual addition before them: RMS norm and layer norm.

So a fused kernel can add and normalise in one pass. A norm with a residual may overwrite both of
its inputs with its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen
from quire.native.layer_kernels import cpu_norms

AddAndNorm = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]


class RMSNorm(Layer):
    """Root-mean-square norm (Zhang and Sennrich, 2019) with the residual addition before it.

    Args:
        hidden_size: Elements per row.
        eps: Term added to the mean square.
        context: Settings to build the layer with.
        weight_offset: Term added to the checkpoint's weight: 1 if the checkpoint stores the
            difference from one (Gemma). Such a weight is float32, and is multiplied before the
            result is rounded.
        has_weight: Whether the normalised row is multiplied by a weight of the checkpoint.
        rounds_before_weight: Whether the normalised row is rounded to the dtype before it is
            multiplied by the weight (Llama). Otherwise only the product is rounded (OLMo 2, Gemma).
            The two differ in half precision only.
    """

    weight: Tensor | None  # [hidden_size]

    def __init__(
        self,
        hidden_size: int,
        eps: float,
        context: LayerContext,
        *,
        weight_offset: float = 0.0,
        has_weight: bool = True,
        rounds_before_weight: bool = False,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.eps_on_cpu = eps_on_cpu(eps, context)
        self.shape = (hidden_size,)
        self.weight_offset = weight_offset
        self.rounds_before_weight = rounds_before_weight
        dtype = weight_dtype(weight_offset, context)
        weight = frozen(self.shape, dtype, context.device) if has_weight else None
        self.register_parameter("weight", weight)
        self.kernel: AddAndNorm | None = None
        if context.kernels == "triton":
            self.kernel = _add_rms_norm(self.weight, eps, rounds_before_weight)
        self.is_native = context.kernels == "native"

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy the vector, with the offset added."""
        del part
        self.get_parameter(parameter).copy_(add_offset(tensor, self.weight_offset))

    def finish_loading(self) -> None:
        """Bind the native kernel, if layers run native kernels."""
        if self.is_native:
            self.kernel = cpu_norms.AddRMSNorm(self.weight, *self.shape, self.eps)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the norm of `x + residual`, and that sum, the next residual; all `[T, hidden]`.

        With a residual both inputs may be overwritten. Without one `x` is unchanged, and is
        returned as the sum.
        """
        if self.kernel is not None:
            return self.kernel(x, residual)
        total = x if residual is None else x + residual
        if self.eps_on_cpu is not None:
            return normalise(total, self.eps_on_cpu, self.weight), total
        normed = normalise_wide(total, self.weight, self.eps, self.rounds_before_weight)
        return normed, total


class LayerNorm(Layer):
    """Layer norm (Ba, Kiros and Hinton, 2016) with the residual addition before it.

    It is computed in float32 and rounded once. It is called as `RMSNorm` is.

    Args:
        hidden_size: Elements per row.
        eps: Term added to the variance.
        context: Settings to build the layer with.
        weight_offset: As in `RMSNorm` (Nemotron).
        has_weight: Whether the normalised row is multiplied by a weight of the checkpoint.
        has_bias: Whether a bias of the checkpoint is added to the result.
    """

    weight: Tensor | None  # [hidden_size]
    bias: Tensor | None  # [hidden_size]

    def __init__(
        self,
        hidden_size: int,
        eps: float,
        context: LayerContext,
        *,
        weight_offset: float = 0.0,
        has_weight: bool = True,
        has_bias: bool = True,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.shape = (hidden_size,)
        self.weight_offset = weight_offset
        dtype = weight_dtype(weight_offset, context)
        self.is_wide = dtype is not context.dtype
        for name, is_present in (("weight", has_weight), ("bias", has_bias)):
            vector = frozen(self.shape, dtype, context.device) if is_present else None
            self.register_parameter(name, vector)
        self.kernel: AddAndNorm | None = None
        if context.kernels == "triton":
            self.kernel = _add_layer_norm(self.weight, self.bias, eps)
        self.is_native = context.kernels == "native"

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy the vector; the offset is added to the weight."""
        del part
        offset = self.weight_offset if parameter == "weight" else 0.0
        self.get_parameter(parameter).copy_(add_offset(tensor, offset))

    def finish_loading(self) -> None:
        """Bind the native kernel, if layers run native kernels."""
        if self.is_native:
            self.kernel = cpu_norms.AddLayerNorm(self.weight, self.bias, *self.shape, self.eps)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the norm of `x + residual`, and that sum, the next residual; all `[T, hidden]`.

        With a residual both inputs may be overwritten. Without one `x` is unchanged, and is
        returned as the sum.
        """
        if self.kernel is not None:
            return self.kernel(x, residual)
        total = x if residual is None else x + residual
        rows = total.float() if self.is_wide else total
        normed = functional.layer_norm(rows, self.shape, self.weight, self.bias, self.eps)
        return normed.to(total.dtype), total


def _add_rms_norm(weight: Tensor | None, eps: float, rounds_before_weight: bool) -> AddAndNorm:
    from quire.kernels.rms_norm import add_rms_norm  # loads Triton

    return partial(add_rms_norm, weight=weight, eps=eps, rounds_before_weight=rounds_before_weight)


def _add_layer_norm(weight: Tensor | None, bias: Tensor | None, eps: float) -> AddAndNorm:
    from quire.kernels.layer_norm import add_layer_norm  # loads Triton

    return partial(add_layer_norm, weight=weight, bias=bias, eps=eps)


def eps_on_cpu(eps: float, context: LayerContext) -> Tensor | None:
    """Return the `eps` tensor of `normalise` if that is faster than torch's norm, else None."""
    is_float32_cpu = context.device.type == "cpu" and context.dtype is torch.float32
    return torch.full((1,), eps, dtype=torch.float32) if is_float32_cpu else None


def weight_dtype(weight_offset: float, context: LayerContext) -> torch.dtype:
    """Return float32 for a weight with an offset: half precision has too few digits for the sum."""
    return torch.float32 if weight_offset else context.dtype


def add_offset(tensor: Tensor, offset: float) -> Tensor:
    """Return a checkpoint's weight with the offset added, in float32 if there is one."""
    return tensor.float() + offset if offset else tensor


def normalise_wide(
    x: Tensor, weight: Tensor | None, eps: float, rounds_before_weight: bool
) -> Tensor:
    """Normalise rows in float32, multiply them by the weight, and round to their dtype.

    They are rounded before the product too if `rounds_before_weight`.
    """
    if weight is None:
        return functional.rms_norm(x, x.shape[-1:], None, eps)
    if weight.dtype == x.dtype and weight.dim() == 1 and not rounds_before_weight:
        return functional.rms_norm(x, x.shape[-1:], weight, eps)
    rows = x if rounds_before_weight else x.float()
    return (functional.rms_norm(rows, x.shape[-1:], None, eps) * weight).to(x.dtype)


def normalise(x: Tensor, eps: Tensor, weight: Tensor | None) -> Tensor:
    """Divide rows by their root mean square, in four operators; torch's norm takes nine."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    normed = x * torch.addcmul(eps, length, length, value=1.0 / x.shape[-1]).rsqrt_()
    return normed if weight is None else normed.mul_(weight)
