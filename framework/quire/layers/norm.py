"""Norms take the residual along, so that a fused kernel can add and normalise in one pass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen
from quire.layers.parallel import share, share_kv_heads


class RMSNorm(Layer):
    """Root-mean-square norm (Zhang and Sennrich, 2019) with the residual addition before it."""

    weight: Tensor  # [hidden_size]

    def __init__(self, hidden_size: int, eps: float, context: LayerContext) -> None:
        super().__init__()
        self.eps = eps
        self.eps_on_cpu = _eps_on_cpu(eps, context)
        self.shape = (hidden_size,)
        self.register_parameter("weight", frozen(self.shape, context.dtype, context.device))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the norm of `x + residual`, and that sum, the next residual; all `[T, hidden]`."""
        total = x if residual is None else x + residual
        if self.eps_on_cpu is None:
            return functional.rms_norm(total, self.shape, self.weight, self.eps), total
        return _normalise(total, self.eps_on_cpu).mul_(self.weight), total


class QKNorm(Layer):
    """The norm over each query and key head, for both in one pass.

    The checkpoint has one vector for all query heads and one for all key heads; they are kept
    repeated for each head.
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
    ) -> None:
        super().__init__()
        heads = len(share("num_attention_heads", num_heads, context.tp))
        kv_heads = len(share_kv_heads(num_kv_heads, context.tp))
        self.eps = eps
        self.eps_on_cpu = _eps_on_cpu(eps, context)
        self.shape = (head_dim,)
        self.rows = {parts[0]: slice(0, heads), parts[1]: slice(heads, heads + kv_heads)}
        shape = (heads + kv_heads, head_dim)
        self.register_parameter("weight", frozen(shape, context.dtype, context.device))

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[D]`."""
        del parameter, part
        return self.shape

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Repeat the vector for each head of its kind."""
        self.get_parameter(parameter)[self.rows[part]] = tensor.to(self.weight)

    def forward(self, qk: Tensor) -> Tensor:
        """Normalise query heads and, after them, key heads: `[T, H + K, D]`."""
        if self.eps_on_cpu is None:
            return functional.rms_norm(qk, self.shape, None, self.eps).mul_(self.weight)
        return _normalise(qk, self.eps_on_cpu).mul_(self.weight)


def _eps_on_cpu(eps: float, context: LayerContext) -> Tensor | None:
    """The constant of `_normalise`, where that is quicker than torch's own norm."""
    is_float32_cpu = context.device.type == "cpu" and context.dtype is torch.float32
    return torch.full((1,), eps) if is_float32_cpu else None


def _normalise(x: Tensor, eps: Tensor) -> Tensor:
    """Divide rows by their root mean square, in four operators where torch's norm takes nine."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(eps, length, length, value=1.0 / x.shape[-1]).rsqrt_()
