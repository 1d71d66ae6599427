"""Compose an engine: settings and registries in, a frozen account of every choice out.

Nothing heavy is imported here. Every part is chosen by what it declared at registration, and the
`Composition` says what was chosen, from which distribution and version, why, and why the others
were not. It is what `quire explain` prints, what the start-up log says, and what workers agree on.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from quire.attention_choice import (
    attention_queries,
    choose_attention_backends,
    common_block_size,
)
from quire.checkpoint import Checkpoint
from quire.choosing import (
    check_present,
    choose_named,
    choose_optional,
    choose_parser,
    default_entry,
)
from quire.composition import Choice, Composition, Rejection
from quire.config import (
    DEFAULT_EXECUTOR,
    DEFAULT_LORA_SOURCE,
    DEFAULT_SCHEDULING_POLICY,
    DEFAULT_STRUCTURED_OUTPUT,
    Settings,
)
from quire.errors import (
    PluginLoadError,
    QuireError,
    RefusedError,
    SettingsError,
    UnknownNameError,
    UnsupportedModelError,
)
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.interfaces.model import ModelDescription
from quire.kernel_choice import check_batch_invariant, choose_graphs, choose_kernels
from quire.machine import Machine
from quire.plugins import Plugins, Registries
from quire.registry import Entry, check_api, import_reference
from quire.sampler_choice import choose_samplers


def compose(
    settings: Settings,
    plugins: Plugins,
    checkpoint: Checkpoint,
    chat_template: str = "",
    machine: Machine | None = None,
) -> Composition:
    """Choose every part.

    Args:
        settings: What the user asked for.
        plugins: What is installed.
        checkpoint: The model's files; only its config is read.
        chat_template: Text of the chat template, by which `auto` finds parsers.
        machine: The machine to plan for; by default this one.

    Raises:
        UnsupportedModelError: No plugin offers the architecture, or it cannot be served.
        PluginError: A part that the user named does not exist, fails to load, or cannot serve.
        SettingsError: Options contradict the model.
        RefusedError: A promise that was asked for cannot be kept.
    """
    machine = machine or Machine.here()
    registries = plugins.registries
    model, description = _choose_model(registries, checkpoint)
    device = machine.device(settings.model.device)
    settings = settings.for_device(device)
    dtype, dtype_why = machine.dtype(settings.model.dtype, description.checkpoint_dtype, device)
    tp_size = settings.parallel.tensor_parallel_size
    kernels = choose_kernels(settings.model.kernels, machine, device)
    check_batch_invariant(settings, device, kernels)
    queries = attention_queries(
        settings, registries, description, device, dtype, machine.compute_capability
    )
    parts = settings.parts
    attention = choose_attention_backends(registries, parts.attention_backend, queries)
    num_graphs, graphs_why = choose_graphs(settings, device, kernels, attention.backends)
    composition = Composition(
        quire_version=version("quire"),
        checkpoint=checkpoint,
        description=description,
        device=device,
        dtype=dtype,
        dtype_why=dtype_why,
        kv_dtype=settings.cache.kv_dtype(dtype),
        kernels=kernels,
        max_model_len=_max_model_len(settings.model.max_model_len, description),
        block_size=settings.cache.block_size or common_block_size(attention.backends),
        model=model,
        attention_backends=attention.backends,
        layer_backends=attention.layer_backends,
        max_graph_requests=num_graphs,
        graphs_why=graphs_why,
        kv_cache_specs=_choose_specs(registries, description),
        samplers=choose_samplers(registries, parts.samplers, kernels),
        structured_output=choose_optional(
            registries.structured_output, parts.structured_output, DEFAULT_STRUCTURED_OUTPUT
        ),
        tool_parser=choose_parser(registries.tool_parsers, parts.tool_call_parser, chat_template),
        reasoning_parser=choose_parser(
            registries.reasoning_parsers, parts.reasoning_parser, chat_template
        ),
        lora_source=_choose_lora(registries, settings, model),
        scheduling_policy=choose_named(
            registries.scheduling_policies,
            settings.scheduler.scheduling_policy,
            DEFAULT_SCHEDULING_POLICY,
        ),
        kv_store=choose_optional(registries.kv_stores, settings.cache.kv_store),
        executor=_choose_executor(registries, settings.parallel.executor, tp_size),
    )
    _check_tensor_parallel(model, description, tp_size)
    for choice in composition.choices:
        check_api(choice.entry)
        check_present(choice.entry)
    return composition


def build_spec(
    registries: Registries, composition: Composition, layer: KVLayer, tp_size: int
) -> KVCacheSpec:
    """Build the KV-cache spec of one layer.

    Raises:
        PluginError: The spec's code cannot be loaded.
        SettingsError: The layer's sizes cannot work.
    """
    choice = next(choice for choice in composition.kv_cache_specs if choice.name == layer.spec)
    spec = registries.kv_cache_specs.load(choice.entry)
    return spec(layer, composition.block_size, composition.kv_dtype, tp_size)


def layer_specs(
    settings: Settings, composition: Composition, registries: Registries
) -> list[KVCacheSpec]:
    """Return the KV-cache spec of each layer that keeps something.

    Raises:
        PluginError: A spec's code cannot be loaded.
        SettingsError: A layer's sizes cannot work.
    """
    tp_size = settings.parallel.tensor_parallel_size
    specs = [
        build_spec(registries, composition, layer, tp_size)
        for layer in composition.description.kv_layers
    ]
    if settings.cache.enable_prefix_caching:
        return specs
    return [spec.without_prefix_hits() for spec in specs]


def _choose_model(
    registries: Registries, checkpoint: Checkpoint
) -> tuple[Choice, ModelDescription]:
    architecture = checkpoint.architecture
    try:
        entry = registries.models.entry(architecture)
    except UnknownNameError as error:
        raise UnsupportedModelError(
            f"{error}. A plugin adds an architecture with the hook register_models: "
            "see docs/plugins/models.md"
        ) from None
    check_api(entry)
    description = _describe(entry, checkpoint.config)
    if description.quantization is not None:
        registries.quantizations.entry(description.quantization)  # raises if nobody serves it
    return Choice("model", entry, "named by the checkpoint"), description


def _describe(entry: Entry, config: Mapping[str, Any]) -> ModelDescription:
    """Ask a model's torch-free half; what it raises on purpose is ours, the rest is its own."""
    what = f"the description of model {entry.name!r} of {entry.source}"
    describe: Callable[[Mapping[str, Any]], ModelDescription]
    describe = import_reference(entry.capabilities.describe, what)  # type: ignore[assignment]
    try:
        description = describe(config)
    except QuireError:
        raise
    except Exception as error:
        raise PluginLoadError(
            f"{what} failed on this config.json: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(description, ModelDescription):
        raise PluginLoadError(f"{what} gave a {type(description).__name__}, no ModelDescription")
    return description


def _choose_specs(registries: Registries, description: ModelDescription) -> tuple[Choice, ...]:
    names = dict.fromkeys(layer.spec for layer in description.kv_layers)
    return tuple(
        Choice(
            "KV-cache spec", default_entry(registries.kv_cache_specs, name), "named by the model"
        )
        for name in names
    )


def _choose_lora(registries: Registries, settings: Settings, model: Choice) -> Choice | None:
    if not settings.lora.enable_lora:
        return None
    if not model.entry.capabilities.supports_lora:
        raise RefusedError(f"model {model.name!r} does not support LoRA; leave out --enable-lora")
    return choose_optional(registries.lora_sources, settings.lora.lora_source, DEFAULT_LORA_SOURCE)


def _choose_executor(registries: Registries, wanted: str, tp_size: int) -> Choice:
    def serves(entry: Entry) -> bool:
        return bool(entry.capabilities.max_tensor_parallel_size >= tp_size)

    registry = registries.executors
    is_default = wanted == DEFAULT_EXECUTOR
    entry = default_entry(registry, wanted) if is_default else registry.entry(wanted)
    if not serves(entry):
        able = [offer.name for offer in registry.offers() if serves(offer)]
        others = ", ".join(dict.fromkeys(able)) or "none installed"
        raise RefusedError(
            f"executor {wanted!r} runs at most {entry.capabilities.max_tensor_parallel_size} "
            f"device(s) a layer, and tensor_parallel_size is {tp_size}; can: {others}"
        )
    rejected = tuple(Rejection(name, "not asked for") for name in registry if name != wanted)
    return Choice("executor", entry, "the default" if is_default else "by setting", rejected)


def _max_model_len(wanted: int | None, description: ModelDescription) -> int:
    longest = description.max_model_len
    if wanted is not None and wanted > longest:
        raise SettingsError(
            f"max_model_len is {wanted}, but the model's positions end at {longest}"
        )
    return wanted or longest


def _check_tensor_parallel(model: Choice, description: ModelDescription, tp_size: int) -> None:
    if tp_size == 1:
        return
    if not model.entry.capabilities.supports_tensor_parallel:
        raise RefusedError(f"model {model.name!r} does not support tensor parallelism")
    if description.num_heads % tp_size:
        raise SettingsError(
            f"tensor_parallel_size {tp_size} does not divide the model's {description.num_heads} "
            "attention heads"
        )
