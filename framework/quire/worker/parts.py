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
from quire.interfaces.attention import KVBackend
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.interfaces.lora import LoRASource
from quire.interfaces.model import Model
from quire.interfaces.quantization import Quantization
from quire.interfaces.sampling import SamplerStep
from quire.plugins.loading import Registries


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """Code of the parts that compute.

    Attributes:
        composition: The choices, with the reasons.
        model: Class of the model.
        quantization: Quantization method of linear layers; None: weights in the compute dtype.
        attention_backends: Classes of the attention backends, by name.
        samplers: Classes of the sampler steps, in the order of the pipeline.
        kv_specs: KV-cache spec of each layer that has KV, as in `description.kv_layers`.
        lora_sources: LoRA sources by name, the chosen one first; empty if LoRA is off.
    """

    composition: Composition
    model: type[Model]
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
        return cls(
            composition=composition,
            model=registries.models.load(composition.model.entry),
            quantization=_quantization(settings, composition, registries),
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


def _quantization(
    settings: Settings, composition: Composition, registries: Registries
) -> Quantization | None:
    choice, description = composition.quantization.value, composition.description
    if choice is None:
        return None
    is_own = description.quantization is not None
    config = description.config["quantization_config"] if is_own else {}
    method = registries.quantizations.load(choice.entry).from_config(config)
    is_named = is_own or settings.model.quantization != AUTO
    return method if is_named else method.lossless()
