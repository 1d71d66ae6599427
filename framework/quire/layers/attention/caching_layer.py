"""A layer that keeps something in the KV cache learns late who serves it, and in which memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from quire.interfaces.attention import AttentionShape, KVBackend
from quire.layers.layer import Layer
from quire.layers.returned import check_returned

Backend = TypeVar("Backend", bound=KVBackend)


class CachingLayer(Layer, Generic[Backend]):
    """What the layers of every contract with a backend share.

    Args:
        name: Module path in the model, as in `ModelDescription.kv_layers`.
        num_heads: Query heads, on this device.
        num_kv_heads: Key/value heads, on this device.
        head_dim: Numbers per head in the cache.

    Attributes:
        contract: The class that a backend of such layers must extend.
        has_sinks: Its heads have learned sinks.
        place: Of the backend among those of the worker, and of its metadata in a batch.
    """

    contract: ClassVar[type[KVBackend]]

    def __init__(self, name: str, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.name = name
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.has_sinks = False
        self.place = -1
        self._backend: Backend | None = None
        self._kv_cache: Tensor | None = None
        self._called = ""

    def backend_shape(self, shape: AttentionShape) -> AttentionShape:
        """Add to a shape what backends of this contract know besides."""
        return shape

    def bind(
        self, backend: Backend, kv_cache: Tensor, place: int, called: str | None = None
    ) -> None:
        """Say who serves the layer, where it keeps its part, and the backend's place.

        Args:
            backend: Computes the layer's attention.
            kv_cache: The layer's part of the cache, as the backend views it.
            place: Index of the backend among those of the worker.
            called: Name of the backend and its plugin in errors; None: the name of its class.
        """
        self._backend = backend
        self._kv_cache = kv_cache
        self.place = place
        self._called = f"{called or type(backend).__name__} of layer {self.name}"

    def unbind(self) -> None:
        """Let go of both."""
        self._backend = self._kv_cache = None
        self.place = -1

    def _check(self, returned: Tensor, shape: Sequence[int], query: Tensor) -> None:
        """Check what the backend returned for a query; only the host's knowledge is compared.

        Raises:
            RequestFailedError: It has another shape, or not the type and the device of the query.
        """
        check_returned(returned, shape, query.dtype, query.device, self._called)

    def _bound(self) -> tuple[Backend, Tensor]:
        """Return the backend and the layer's part of the cache.

        Raises:
            RuntimeError: The layer is not bound.
        """
        if self._backend is None or self._kv_cache is None:
            raise RuntimeError(f"attention layer {self.name} runs before bind()")
        return self._backend, self._kv_cache
