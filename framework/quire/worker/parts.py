"""Parts of a worker: the code behind the chosen names, imported before weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from quire.compose.choices.choosing import AUTO
from quire.compose.choices.lora_choice import load_sources
from quire.compose.composition import Composition
from quire.compose.sizes.layer_specs import layer_specs
from quire.config import Settings
from quire.errors import PluginError
from quire.interfaces.attention import KVBackend
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.interfaces.lora import LoRASource
from quire.interfaces.model import Model
from quire.interfaces.quantization import PreparedQuantization, Quantization
from quire.interfaces.sampling import SamplerStep
from quire.plugins.loading import Registries


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Code of the parts that compute.

    Attributes:
        composition: The choices, with the reasons.
        model: Class of the model.
        prepared: Method that reads the checkpoint's quantized weights; None: there are none.
        quantization: Quantization method of linear layers; None: weights in the compute dtype.
        attention_backends: Classes of the attention backends, by name.
        samplers: Classes of the sampler steps, in the order of the pipeline.
        kv_specs: KV-cache spec of each layer that has KV, as in `description.kv_layers`.
        lora_sources: LoRA sources by name, the chosen one first; empty if LoRA is off.
    """

    composition: Composition
    model: type[Model]
    prepared: PreparedQuantization | None
    quantization: Quantization | None
    attention_backends: Mapping[str, type[KVBackend]]
    samplers: tuple[type[SamplerStep], ...]
    kv_specs: tuple[KVCacheSpec, ...]
    lora_sources: Mapping[str, LoRASource]

    @classmethod
    def load(cls, settings: Settings, composition: Composition, registries: Registries) -> Self:
        """Import the chosen parts.

        Raises:
            PluginError: The code of a part cannot be loaded.
            SettingsError: An option of a part is unknown or invalid.
            RefusedError: A part does not support this machine.
        """
        prepared = _prepared(composition, registries)
        return cls(
            composition=composition,
            model=registries.models.load(composition.model.entry),
            prepared=prepared,
            quantization=_quantization(settings, composition, registries, prepared),
            attention_backends={
                choice.name: registries.attention_backends.load(choice.entry)
                for choice in composition.attention_backends
            },
            samplers=tuple(
                registries.samplers.load(choice.entry) for choice in composition.samplers
            ),
            kv_specs=tuple(layer_specs(settings, composition, registries)),
            lora_sources=load_sources(settings.lora, composition, registries),
        )

    def backend_class(self, layer: KVLayer) -> type[KVBackend]:
        """Return the class of the attention backend of one of the model's layers."""
        return self.attention_backends[self.composition.attention_backend_of(layer).name]


def _prepared(composition: Composition, registries: Registries) -> PreparedQuantization | None:
    choice = composition.prepared_quantization
    if choice is None:
        return None
    config = composition.description.config["quantization_config"]
    method = registries.quantizations.load(choice.entry).from_config(config)
    if not isinstance(method, PreparedQuantization):
        raise PluginError(
            f"{choice} declares reads_prepared, but {type(method).__name__} does not derive from "
            "quire.interfaces.quantization.PreparedQuantization"
        )
    return method


def _quantization(
    settings: Settings,
    composition: Composition,
    registries: Registries,
    prepared: PreparedQuantization | None,
) -> Quantization | None:
    choice = composition.quantization.value
    if choice is None:
        return None
    own, may_round = composition.prepared_quantization, composition.rounds_weights
    if prepared is not None and own is not None and choice.entry == own.entry:
        method: Quantization = prepared
        may_round = True
    else:
        method = registries.quantizations.load(choice.entry).from_config({})
        may_round |= settings.model.quantization != AUTO
    if composition.rounds_inputs:
        method = method.for_dtype(composition.dtype.value)
    return method if may_round else method.lossless()
