"""Each layer gets its part of the cache, and the backend that was chosen for its kind of layer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quire.compose.composition import Choice, Composition
from quire.config import Settings
from quire.errors import PluginLoadError
from quire.interfaces.attention import AttentionShape, KVBackend
from quire.interfaces.kv_cache import KVCacheSpec, KVGroup, KVPlan
from quire.interfaces.model import Model
from quire.layers.attention.caching_layer import CachingLayer
from quire.plugins.loading import Registries
from quire.worker.loading.weight_loading import as_module


class LayerBinding:
    """Binds the layers of one device.

    Args:
        settings: How large a step can be.
        composition: Which backends were chosen.
        registries: Where their names are resolved.
        device: Where layers compute.
        dtype: In what they compute.
    """

    def __init__(
        self,
        settings: Settings,
        composition: Composition,
        registries: Registries,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._settings = settings
        self._composition = composition
        self._registries = registries
        self._device = device
        self._dtype = dtype

    def bind(
        self,
        model: Model,
        plan: KVPlan,
        memory: Mapping[str, Tensor],  # by layer, uint8 [num_blocks, page_bytes]
    ) -> tuple[list[KVBackend], list[int]]:
        """Give each layer of the plan its part of the cache, and a backend for its head shape.

        Returns:
            The backends, in the order of their places, and the KV group of each.

        Raises:
            PluginLoadError: The model has no such layer, or the chosen backend does not speak the
                layer's contract.
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
            model: Whose layers they are.
            plan: The memory of the cache.
            group: The group.
            memory: As `bind` takes it.
            num_backends: Those of earlier groups: a layer knows its backend by its place.

        Returns:
            The backends of this group: one for each class and shape, none if there are no layers.
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
                self._composition,
                self._dtype,
                self._device,
                max_blocks=group.spec.blocks_needed(plan.max_model_len),
                page_bytes=None if page_bytes == spec.page_bytes else page_bytes,
            )
            key = (backend_class, shape)
            if key not in bound:
                bound[key] = (num_backends + len(bound), backend_class(shape))
            place, backend = bound[key]
            pages = _own_pages(memory[name], spec)
            called = str(self._composition.attention_backend_of(spec.layer))
            layer.bind(backend, backend_class.kv_view(pages, spec, plan.num_blocks), place, called)
        return [backend for _, backend in bound.values()]

    def _backend_class(self, layer: CachingLayer[Any], spec: KVCacheSpec) -> type[KVBackend]:
        """Return the class of the backend that was chosen for a layer.

        Raises:
            PluginLoadError: It speaks another contract.
        """
        choice = self._composition.attention_backend_of(spec.layer)
        backend_class = self._registries.attention_backends.load(choice.entry)
        if not issubclass(backend_class, layer.contract):
            raise PluginLoadError(_mismatch(layer, spec, choice, backend_class))
        return backend_class

    def _layers(self, model: Model, group: KVGroup) -> list[tuple[str, CachingLayer[Any]]]:
        every = dict(as_module(model).named_modules())
        layers = [(name, every.get(name)) for name in group.layer_names]
        wrong = [name for name, layer in layers if not isinstance(layer, CachingLayer)]
        if wrong:
            raise PluginLoadError(
                f"model {self._composition.model.name!r} describes KV layers that it does not have "
                f"as quire.layers.Attention or quire.layers.MLAAttention: {', '.join(wrong[:3])}"
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
    """Return what a layer's backend is built from.

    Args:
        layer: As the model built it.
        spec: What it keeps.
        settings: How large steps are.
        composition: In what it is kept.
        dtype: In what the layer computes.
        device: Where.
        max_blocks: Of a request.
        page_bytes: Of a page of the pool, if that is longer than the layer's own.
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
    )
    return layer.backend_shape(shape)


def _check_description(layer: CachingLayer[Any], spec: KVCacheSpec) -> None:
    """Check what the backend was chosen by: a wrong word would be a wrong answer, in silence."""
    if layer.has_sinks != spec.layer.has_sinks:
        raise PluginLoadError(
            f"layer {layer.name} has has_sinks={layer.has_sinks}, and the model's description "
            f"says has_sinks={spec.layer.has_sinks}: the two must agree"
        )
    if layer.head_dim != spec.layer.head_dim:
        raise PluginLoadError(
            f"layer {layer.name} keeps rows of {layer.head_dim} numbers, and the model's "
            f"description gives it head_dim={spec.layer.head_dim}: the two must agree"
        )


def _mismatch(
    layer: CachingLayer[Any], spec: KVCacheSpec, choice: Choice, backend_class: type[KVBackend]
) -> str:
    wanted = f"{layer.contract.__module__}.{layer.contract.__name__}"
    return (
        f"layer {layer.name} is a {type(layer).__name__} and needs a {wanted}, and {choice} is "
        f"{backend_class.__name__}, which is none: the layout that KV-cache spec "
        f"{spec.layer.spec!r} declares must be the one that such layers speak, and a backend may "
        "declare only layouts whose contract it implements; take another --attention-backend, or "
        "correct the plugin"
    )


def _own_pages(
    memory: Tensor,  # [num_blocks, page_bytes]
    spec: KVCacheSpec,
) -> Tensor:
    """Return the bytes that a layer keeps, as `KVBackend.kv_view` takes them."""
    if memory.shape[1] == spec.page_bytes:
        return memory.view(-1)
    return memory[:, : spec.page_bytes]
