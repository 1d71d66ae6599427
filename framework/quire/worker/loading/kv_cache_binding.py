"""Binding of attention layers to their KV cache tensors and attention backends."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quire.compose.composition import Choice, Composition
from quire.config import Settings
from quire.errors import PluginLoadError, RefusedError
from quire.interfaces.attention import AttentionShape, KVBackend
from quire.interfaces.kv_cache import KVCacheSpec, KVGroup, KVPlan
from quire.interfaces.model import Model
from quire.layers.attention.caching_layer import CachingLayer
from quire.worker.loading.weight_targets import as_module
from quire.worker.parts import WorkerParts


class LayerBinding:
    """Binds the layers of one device.

    Args:
        settings: Settings with the limits of a step.
        parts: Parts with the attention backends.
        device: Device of the layers.
        dtype: Dtype in which the layers compute.
    """

    def __init__(
        self,
        settings: Settings,
        parts: WorkerParts,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._settings = settings
        self._parts = parts
        self._device = device
        self._dtype = dtype

    def bind(
        self,
        model: Model,
        plan: KVPlan,
        memory: Mapping[str, Tensor],  # by layer, uint8 [num_blocks, page_bytes]
    ) -> tuple[list[KVBackend], list[int]]:
        """Bind each layer of the plan to its KV cache tensor and a backend for its head shape.

        Returns:
            Backends, by backend index, and the KV group of each.

        Raises:
            PluginLoadError: The model has no such layer, or the chosen backend does not implement
                the layer's contract.
        """
        backends: list[KVBackend] = []
        groups: list[int] = []
        for index, group in enumerate(plan.groups):
            bound = self._bind_group(model, plan, group, memory, len(backends))
            backends += bound
            groups += [index] * len(bound)
        return backends, groups

    def _bind_group(
        self,
        model: Model,
        plan: KVPlan,
        group: KVGroup,
        memory: Mapping[str, Tensor],
        num_backends: int,
    ) -> list[KVBackend]:
        """Bind the layers of one KV group.

        Args:
            model: Model that has the layers.
            plan: Memory plan of the KV cache.
            group: KV group.
            memory: KV cache tensors by layer name, as in `bind`.
            num_backends: Number of backends of earlier groups, from which backend indexes go on.

        Returns:
            Backends of this group, one for each class and shape; none if it has no layers.
        """
        specs = dict(zip(group.layer_names, group.layer_specs, strict=True))
        bound: dict[tuple[type[KVBackend], AttentionShape], tuple[int, KVBackend]] = {}
        for name, layer in self._layers(model, group):
            spec = specs[name]
            _check_description(layer, spec)
            backend_class = self._backend_class(layer, spec)
            page_bytes = memory[name].shape[1]
            shape = attention_shape(
                layer,
                spec,
                self._settings,
                self._parts.composition,
                self._dtype,
                self._device,
                max_blocks=group.spec.blocks_needed(plan.max_model_len),
                page_bytes=None if page_bytes == spec.page_bytes else page_bytes,
            )
            key = (backend_class, shape)
            if key not in bound:
                backend = self._build(backend_class, shape, spec)
                bound[key] = (num_backends + len(bound), backend)
            backend_index, backend = bound[key]
            pages = _own_pages(memory[name], spec)
            backend_name = str(self._parts.composition.attention_backend_of(spec.layer))
            layer.bind(
                backend,
                backend_class.kv_view(pages, spec, plan.num_blocks),
                backend_index,
                backend_name,
            )
        return [backend for _, backend in bound.values()]

    def _build(
        self, backend_class: type[KVBackend], shape: AttentionShape, spec: KVCacheSpec
    ) -> KVBackend:
        """Build a backend.

        Raises:
            RefusedError: It does not support the shape; the message names the backend.
        """
        try:
            return backend_class(shape)
        except RefusedError as error:
            choice = self._parts.composition.attention_backend_of(spec.layer)
            raise RefusedError(
                f"{choice} refuses the layers of this model: {error}; choose another one with "
                "--attention-backend (its plugin should declare this in its capabilities)"
            ) from error

    def _backend_class(self, layer: CachingLayer[Any], spec: KVCacheSpec) -> type[KVBackend]:
        """Return the class of the backend that was chosen for a layer.

        Raises:
            PluginLoadError: The class does not implement the layer's contract.
        """
        backend_class = self._parts.backend_class(spec.layer)
        if not issubclass(backend_class, layer.contract):
            choice = self._parts.composition.attention_backend_of(spec.layer)
            raise PluginLoadError(_mismatch(layer, spec, choice, backend_class))
        return backend_class

    def _layers(self, model: Model, group: KVGroup) -> list[tuple[str, CachingLayer[Any]]]:
        modules = dict(as_module(model).named_modules())
        layers = [(name, modules.get(name)) for name in group.layer_names]
        wrong = [name for name, layer in layers if not isinstance(layer, CachingLayer)]
        if wrong:
            raise PluginLoadError(
                f"model {self._parts.composition.model.name!r} describes KV layers that are not "
                "modules of type quire.layers.Attention or quire.layers.MLAAttention: "
                f"{', '.join(wrong[:3])}"
            )
        return [(name, layer) for name, layer in layers if isinstance(layer, CachingLayer)]


def attention_shape(
    layer: CachingLayer[Any],
    spec: KVCacheSpec,
    settings: Settings,
    composition: Composition,
    dtype: torch.dtype,
    device: torch.device,
    *,
    max_blocks: int,
    page_bytes: int | None = None,
) -> AttentionShape:
    """Return the shape from which a layer's backend is built.

    Args:
        layer: Layer, as the model built it.
        spec: KV-cache spec of the layer.
        settings: Settings with the limits of a step.
        composition: Composition with the dtype of the KV cache.
        dtype: Dtype in which the layer computes.
        device: Device of the layer.
        max_blocks: Maximum number of blocks of a request.
        page_bytes: Bytes per page of the pool, if a page is longer than the layer's own.
    """
    shape = AttentionShape(
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_dim,
        block_size=spec.block_size,
        max_num_seqs=settings.scheduler.max_num_seqs,
        max_num_batched_tokens=settings.scheduler.max_num_batched_tokens,
        max_blocks_per_request=max_blocks,
        dtype=dtype,
        kv_dtype=composition.kv_dtype,
        device=device,
        page_bytes=page_bytes,
        batch_invariant=settings.model.batch_invariant,
        product_dtype=composition.dtype.value,
    )
    return layer.backend_shape(shape)


def _check_description(layer: CachingLayer[Any], spec: KVCacheSpec) -> None:
    """Check the description by which the backend was chosen: an error would corrupt the output."""
    if layer.has_sinks != spec.layer.has_sinks:
        raise PluginLoadError(
            f"layer {layer.name} has has_sinks={layer.has_sinks}, but the model's description "
            f"has has_sinks={spec.layer.has_sinks}: the two must agree"
        )
    if layer.has_alibi != spec.layer.has_alibi:
        raise PluginLoadError(
            f"layer {layer.name} has has_alibi={layer.has_alibi}, but the model's description "
            f"has has_alibi={spec.layer.has_alibi}: the two must agree"
        )
    if layer.head_dim != spec.layer.head_dim:
        raise PluginLoadError(
            f"layer {layer.name} has head_dim={layer.head_dim}, but the model's description has "
            f"head_dim={spec.layer.head_dim}: the two must agree"
        )


def _mismatch(
    layer: CachingLayer[Any], spec: KVCacheSpec, choice: Choice, backend_class: type[KVBackend]
) -> str:
    wanted = f"{layer.contract.__module__}.{layer.contract.__name__}"
    return (
        f"layer {layer.name} is a {type(layer).__name__} and needs a {wanted}, but {choice} is "
        f"{backend_class.__name__}, which does not implement it: KV-cache spec "
        f"{spec.layer.spec!r} must declare the layout of such layers, and a backend may only "
        "declare layouts that it implements; choose another --attention-backend, or correct the "
        "plugin"
    )


def _own_pages(
    memory: Tensor,  # [num_blocks, page_bytes]
    spec: KVCacheSpec,
) -> Tensor:
    """Return the bytes of each page that belong to a layer, as `KVBackend.kv_view` takes them."""
    if memory.shape[1] == spec.page_bytes:
        return memory.view(-1)
    return memory[:, : spec.page_bytes]
