"""KV-cache specs of a model's layers, and the pipeline stage that each of them belongs to."""

from collections.abc import Sequence

from quire.compose.composition import Composition
from quire.config import Settings
from quire.errors import RefusedError
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.interfaces.model import ModelDescription
from quire.plugins.loading import Registries


def build_spec(
    registries: Registries, composition: Composition, layer: KVLayer, tp_size: int
) -> KVCacheSpec:
    """Build the KV-cache spec of one layer.

    Raises:
        PluginError: The spec's code cannot be loaded.
        SettingsError: The spec does not support the layer's sizes.
    """
    choice = next(choice for choice in composition.kv_cache_specs if choice.name == layer.spec)
    spec = registries.kv_cache_specs.load(choice.entry)
    return spec(layer, composition.block_size, composition.kv_dtype, tp_size)


def layer_specs(
    settings: Settings, composition: Composition, registries: Registries
) -> list[KVCacheSpec]:
    """Return the KV-cache specs of all layers that have KV.

    Raises:
        PluginError: A spec's code cannot be loaded.
        SettingsError: A spec does not support the sizes of its layer.
    """
    specs = [
        build_spec(registries, composition, layer, composition.grid.tp_size)
        for layer in composition.description.kv_layers
    ]
    if settings.cache.enable_prefix_caching:
        return specs
    return [spec.without_prefix_hits() for spec in specs]


def stage_specs(composition: Composition, specs: Sequence[KVCacheSpec]) -> list[list[KVCacheSpec]]:
    """Return the KV-cache specs of each pipeline stage, of those of all layers."""
    if composition.grid.pp_size == 1:
        return [list(specs)]
    indexes = kv_layer_indexes(composition.description)
    return [
        [spec for spec, index in zip(specs, indexes, strict=True) if index in layers]
        for layers in composition.stage_layers
    ]


def kv_layer_indexes(description: ModelDescription) -> list[int]:
    """Return the index of the decoder layer that each of the model's `kv_layers` is part of.

    Raises:
        RefusedError: The description does not say it, or names a layer that does not exist.
    """
    known, num_layers = description.kv_layers, description.num_layers
    if len(known) == num_layers and all(layer.layer_index is None for layer in known):
        return list(range(num_layers))
    indexes = [layer.layer_index for layer in known]
    wrong = [
        layer.name
        for layer, index in zip(known, indexes, strict=True)
        if index is None or not 0 <= index < num_layers
    ]
    if wrong:
        raise RefusedError(
            f"model {description.architecture!r} cannot be divided into pipeline stages: its "
            f"description gives {wrong[0]} no `layer_index` from 0 to {num_layers - 1}; use "
            "pipeline_parallel_size 1, or correct the plugin"
        )
    return [index for index in indexes if index is not None]
