"""RMS norms of hidden states and of heads; the former include the residual addition.

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
from quire.layers.layer import Layer, begin_native, frozen
from quire.layers.parallel import shard, shard_kv_heads
from quire.native.layer_kernels import cpu_layers

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
    """

    weight: Tensor  # [hidden_size]

    def __init__(
        self, hidden_size: int, eps: float, context: LayerContext, *, weight_offset: float = 0.0
    ) -> None:
        super().__init__()
        self.eps = eps
        self.eps_on_cpu = _eps_on_cpu(eps, context)
        self.shape = (hidden_size,)
        self.weight_offset = weight_offset
        dtype = _weight_dtype(weight_offset, context)
        self.is_wide = dtype is not context.dtype
        self.register_parameter("weight", frozen(self.shape, dtype, context.device))
        self.kernel: AddAndNorm | None = None
        if context.kernels == "triton":
            self.kernel = _add_rms_norm(self.weight, eps)
        self.is_native = begin_native(context)

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy the vector, with the offset added."""
        del part
        self.get_parameter(parameter).copy_(_add_offset(tensor, self.weight_offset))

    def finish_loading(self) -> None:
        """Bind the native kernel, if it is available."""
        if self.is_native and cpu_layers.LIBRARY.is_available():
            self.kernel = cpu_layers.AddRMSNorm(self.weight, self.eps)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the norm of `x + residual`, and that sum, the next residual; all `[T, hidden]`.

        With a residual both inputs may be overwritten. Without one `x` is unchanged, and is
        returned as the sum.
        """
        if self.kernel is not None:
            return self.kernel(x, residual)
        total = x if residual is None else x + residual
        if self.is_wide:
            return _normalise_wide(total, self.weight, self.eps), total
        if self.eps_on_cpu is None:
            return functional.rms_norm(total, self.shape, self.weight, self.eps), total
        return _normalise(total, self.eps_on_cpu).mul_(self.weight), total


class QKNorm(Layer):
    """RMS norm of each query head and key head, for both in one pass.

    The checkpoint has one vector for all query heads and one for all key heads; the weight repeats
    them for each head. `weight_offset` is as in `RMSNorm`. A backend that fuses the rotary
    embedding takes `weight` and `eps`, and applies the norm itself; so there is no Triton kernel.
    """

    weight: Tensor  # [H + K, D]

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
        context: LayerContext,
        *,
        parts: tuple[str, str] = ("q_norm", "k_norm"),
        weight_offset: float = 0.0,
    ) -> None:
        super().__init__()
        heads = len(shard("num_attention_heads", num_heads, context.tp))
        kv_heads = len(shard_kv_heads(num_kv_heads, context.tp))
        self.eps = eps
        self.eps_on_cpu = _eps_on_cpu(eps, context)
        self.shape = (head_dim,)
        self.rows = {parts[0]: slice(0, heads), parts[1]: slice(heads, heads + kv_heads)}
        self.weight_offset = weight_offset
        shape, dtype = (heads + kv_heads, head_dim), _weight_dtype(weight_offset, context)
        self.is_wide = dtype is not context.dtype
        self.register_parameter("weight", frozen(shape, dtype, context.device))
        self.kernel: Callable[[Tensor], Tensor] | None = None
        self.is_native = begin_native(context)

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[D]`."""
        del parameter, part
        return self.shape

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy the vector to each query head or each key head."""
        moved = _add_offset(tensor, self.weight_offset)
        self.get_parameter(parameter)[self.rows[part]] = moved.to(self.weight)

    def finish_loading(self) -> None:
        """Bind the native kernel, if it is available."""
        if self.is_native and cpu_layers.LIBRARY.is_available():
            self.kernel = cpu_layers.HeadRMSNorm(self.weight, self.eps)

    def forward(self, qk: Tensor) -> Tensor:
        """Normalise the query heads and the key heads behind them, `[T, H + K, D]`."""
        if self.kernel is not None:
            return self.kernel(qk)
        if self.is_wide:
            return _normalise_wide(qk, self.weight, self.eps)
        if self.eps_on_cpu is None:
            return functional.rms_norm(qk, self.shape, None, self.eps).mul_(self.weight)
        return _normalise(qk, self.eps_on_cpu).mul_(self.weight)


def _add_rms_norm(weight: Tensor, eps: float) -> AddAndNorm:
    from quire.kernels.rms_norm import add_rms_norm  # loads Triton

    return partial(add_rms_norm, weight=weight, eps=eps)


def _eps_on_cpu(eps: float, context: LayerContext) -> Tensor | None:
    """Return the `eps` tensor of `_normalise` if that is faster than torch's norm, else None."""
    is_float32_cpu = context.device.type == "cpu" and context.dtype is torch.float32
    return torch.full((1,), eps, dtype=torch.float32) if is_float32_cpu else None


def _weight_dtype(weight_offset: float, context: LayerContext) -> torch.dtype:
    """Return float32 for a weight with an offset: half precision has too few digits for the sum."""
    return torch.float32 if weight_offset else context.dtype


def _add_offset(tensor: Tensor, offset: float) -> Tensor:
    return tensor.float() + offset if offset else tensor


def _normalise_wide(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise and multiply in float32, and round once."""
    normed = functional.rms_norm(x.float(), x.shape[-1:], None, eps)
    return normed.mul_(weight).to(x.dtype)


def _normalise(x: Tensor, eps: Tensor) -> Tensor:
    """Divide rows by their root mean square, in four operators; torch's norm takes nine."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(eps, length, length, value=1.0 / x.shape[-1]).rsqrt_()
