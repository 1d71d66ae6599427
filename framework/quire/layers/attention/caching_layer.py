"""Base class of layers that store data in the KV cache, with a backend that is bound later."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor

from quire.interfaces.attention import AttentionShape, KVBackend
from quire.interfaces.model import ForwardBatch
from quire.layers.layer import Layer

Backend = TypeVar("Backend", bound=KVBackend)


class CachingLayer(Layer, Generic[Backend]):
    """Base of the layers of every layout.

    Args:
        name: Module path in the model, as in `ModelDescription.kv_layers`.
        num_heads: Number of query heads on this device.
        num_kv_heads: Number of key/value heads on this device.
        head_dim: Elements per head in the cache.

    Attributes:
        contract: Class that a backend of such layers must extend.
        has_sinks: True if the heads have learned sinks.
        has_alibi: True if the scores have linear biases (ALiBi).
        backend_index: Index of the layer's backend in the worker, and of its metadata in a batch;
            -1 if no backend is bound.
    """

    contract: ClassVar[type[KVBackend]]

    def __init__(self, name: str, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.name = name
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.has_sinks = False
        self.has_alibi = False
        self.backend_index = -1
        self._backend: Backend | None = None
        self._kv_cache: Tensor | None = None
        self._callee = ""

    def backend_shape(self, shape: AttentionShape) -> AttentionShape:
        """Return the shape extended by the sizes that backends of this layer's contract need."""
        return shape

    def bind(
        self,
        backend: Backend,
        kv_cache: Tensor,
        backend_index: int,
        backend_name: str | None = None,
    ) -> None:
        """Set the layer's backend and its part of the cache.

        Args:
            backend: Backend that computes the layer's attention.
            kv_cache: The layer's part of the cache, as returned by the backend's `kv_view`.
            backend_index: Index of the backend in the worker.
            backend_name: Name of the backend and its plugin for errors; None: its class name.
        """
        self._backend = backend
        self._kv_cache = kv_cache
        self.backend_index = backend_index
        self._callee = f"{backend_name or type(backend).__name__} of layer {self.name}"

    def unbind(self) -> None:
        """Drop the backend and the cache."""
        self._backend = self._kv_cache = None
        self.backend_index = -1

    def _bound(self, batch: ForwardBatch) -> tuple[Backend, Tensor, Any]:
        """Return the bound backend, the layer's part of the cache, and the step's metadata.

        Raises:
            RuntimeError: The layer is not bound.
        """
        if self._backend is None or self._kv_cache is None:
            raise RuntimeError(f"attention layer {self.name} runs before bind()")
        return self._backend, self._kv_cache, batch.attention[self.backend_index]
