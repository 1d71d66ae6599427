"""Gated activation with clamped inputs, of gpt-oss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from quire.layers.context import LayerContext
from quire.layers.layer import Layer
from quire.native.layer_kernels import cpu_moe


class ClampedSwiGLU(Layer):
    """`(up + 1) * gate * sigmoid(alpha * gate)`, with the gate at most `limit`, up within it.

    Args:
        alpha: Slope of the sigmoid.
        limit: Largest gate, and largest magnitude of the up projection.
        context: Settings to build the layer with.
    """

    def __init__(self, alpha: float, limit: float, context: LayerContext) -> None:
        super().__init__()
        self.alpha = alpha
        self.limit = limit
        self.kernel: Callable[[Tensor], Tensor] | None = None
        if context.kernels == "triton":
            from quire.kernels.clamped_gate import clamped_gate  # loads Triton

            self.kernel = partial(clamped_gate, alpha=alpha, limit=limit)
        self.is_native = context.kernels == "native"

    def finish_loading(self) -> None:
        """Bind the native kernel, if layers run native kernels."""
        if self.is_native:
            self.kernel = cpu_moe.ClampedGate(self.alpha, self.limit)

    def forward(self, gate_up: Tensor) -> Tensor:
        """Return the activation, computed in float32: `[T, 2 * n] -> [T, n]`."""
        if self.kernel is not None:
            return self.kernel(gate_up)
        gate, up = gate_up.float().chunk(2, -1)
        gate = gate.clamp(max=self.limit)
        slope = (gate * -self.alpha).exp_().add_(1)
        up = up.clamp(min=-self.limit, max=self.limit).add_(1)
        return up.mul_(gate.div_(slope)).to(gate_up.dtype)
