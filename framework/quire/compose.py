"""Compose an engine: settings and registries in, a frozen account of every choice out.

Nothing heavy is imported here. Every part is chosen by what it declared at registration, and the
`Composition` says what was chosen, from which distribution and version, why, and why the others
were not. It is what `quire explain` prints, what the start-up log says, and what workers agree on.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any

from quire.checkpoint import Checkpoint
from quire.composition import Choice, Composition, Rejection
from quire.config import (
    DEFAULT_EXECUTOR,
    DEFAULT_LORA_SOURCE,
    DEFAULT_SAMPLERS,
    DEFAULT_SCHEDULING_POLICY,
    DEFAULT_STRUCTURED_OUTPUT,
    Settings,
)
from quire.discovery import OWN_DISTRIBUTION, locate
from quire.errors import (
    PluginLoadError,
    QuireError,
    RefusedError,
    SettingsError,
    UnknownNameError,
    UnsupportedModelError,
)
from quire.interfaces.attention import AttentionCapabilities, AttentionQuery
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer, KVSpecCapabilities
from quire.interfaces.model import ModelDescription
from quire.interfaces.sampling import STAGES, RequestField
from quire.machine import Machine
from quire.plugins import Plugins, Registries
from quire.registry import Entry, Registry, check_api, import_reference

AUTO, NONE = "auto", "none"

logger = logging.getLogger(__name__)


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
    dtype, dtype_why = machine.dtype(settings.model.dtype, description.checkpoint_dtype, device)
    tp_size = settings.parallel.tensor_parallel_size
    _check_batch_invariant(settings, device)
    queries = _attention_queries(settings, registries, description, device, dtype)
    backend = _choose_attention_backend(registries, settings.parts.attention_backend, queries)
    capabilities: AttentionCapabilities = backend.entry.capabilities
    parts = settings.parts
    composition = Composition(
        quire_version=version("quire"),
        checkpoint=checkpoint,
        description=description,
        device=device,
        dtype=dtype,
        dtype_why=dtype_why,
        kv_dtype=dtype,
        max_model_len=_max_model_len(settings.model.max_model_len, description),
        block_size=settings.cache.block_size or capabilities.default_block_size,
        model=model,
        attention_backend=backend,
        kv_cache_specs=_choose_specs(registries, description),
        samplers=_choose_samplers(registries, parts.samplers),
        structured_output=_choose_optional(
            registries.structured_output, parts.structured_output, DEFAULT_STRUCTURED_OUTPUT
        ),
        tool_parser=_choose_parser(registries.tool_parsers, parts.tool_call_parser, chat_template),
        reasoning_parser=_choose_parser(
            registries.reasoning_parsers, parts.reasoning_parser, chat_template
        ),
        lora_source=_choose_lora(registries, settings, model),
        scheduling_policy=_choose_named(
            registries.scheduling_policies,
            settings.scheduler.scheduling_policy,
            DEFAULT_SCHEDULING_POLICY,
        ),
        kv_store=_choose_optional(registries.kv_stores, settings.cache.kv_store),
        executor=_choose_executor(registries, settings.parallel.executor, tp_size),
    )
    _check_tensor_parallel(model, description, tp_size)
    for choice in composition.choices:
        check_api(choice.entry)
        _check_present(choice.entry)
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


def _attention_queries(
    settings: Settings,
    registries: Registries,
    description: ModelDescription,
    device: str,
    dtype: str,
) -> list[AttentionQuery]:
    """Return what the model asks of a backend, once for each kind of its layers."""
    tp_size = settings.parallel.tensor_parallel_size

    def query(layer: KVLayer) -> AttentionQuery:
        entry = _default_entry(registries.kv_cache_specs, layer.spec)
        spec: KVSpecCapabilities = entry.capabilities
        window = layer.param(spec.window_param) if spec.window_param else None
        return AttentionQuery(
            device=device,
            dtype=dtype,
            kv_dtype=dtype,
            num_heads=max(1, description.num_heads // tp_size),
            num_kv_heads=max(1, layer.num_kv_heads // tp_size),
            head_dim=layer.head_dim,
            block_size=settings.cache.block_size,
            layout=spec.layout,
            sliding_window=window or description.sliding_window,
            attention_chunk=layer.param(spec.chunk_param) if spec.chunk_param else None,
            logit_soft_cap=description.logit_soft_cap,
            batch_invariant=settings.model.batch_invariant,
        )

    return list(dict.fromkeys(map(query, description.kv_layers)))


def _choose_attention_backend(
    registries: Registries, wanted: str, queries: Iterable[AttentionQuery]
) -> Choice:
    registry = registries.attention_backends
    refusals: dict[str, str | None] = {}
    able: dict[str, Entry] = {}
    for name in registry:
        entry = registry.entry(name) if name == wanted else _ours(registry, name)
        refusals[name] = _refusal(entry, queries) if entry else "several plugins offer it"
        if entry is not None and refusals[name] is None:
            able[name] = entry
    if wanted != AUTO:
        entry = registry.entry(wanted)
        check_api(entry)
        _check_present(entry)
        if reason := refusals[wanted]:
            others = ", ".join(able) or "none of the installed ones"
            raise RefusedError(
                f"attention backend {wanted!r} cannot serve this model: {reason}; can: {others}"
            )
        return Choice("attention backend", entry, "asked for", _rejections(refusals, wanted))
    if not able:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise RefusedError(f"no attention backend can serve this model ({reasons or 'none'})")
    best = max(able.values(), key=lambda entry: entry.capabilities.priority)
    why = "the only one that can" if len(able) == 1 else "the highest priority of those that can"
    rejected = _rejections(refusals, best.name)
    return Choice("attention backend", best, f"auto: {why}", rejected)


def _refusal(entry: Entry, queries: Iterable[AttentionQuery]) -> str | None:
    """Return why a backend cannot serve, or None if it can."""
    if entry.api not in entry.kind.apis:
        return f"it speaks version {entry.api} of the interface"
    if locate(entry.reference) is None:
        return f"there is no module for {entry.reference!r}"
    reasons = (entry.capabilities.refusal(query) for query in queries)
    return next((reason for reason in reasons if reason is not None), None)


def _check_present(entry: Entry) -> None:
    """Check, without importing it, that an entry's module is there.

    Raises:
        PluginLoadError: It is not.
    """
    if locate(entry.reference) is None:
        raise PluginLoadError(
            f"{entry.kind.title} {entry.name!r} of {entry.source} points at {entry.reference!r}, "
            "and there is no such module"
        )


def _ours(registry: Registry[Any], name: str) -> Entry | None:
    """Return who serves a name that nobody typed; None if only strangers contest it.

    What is merely installed cannot take the place of what ships with quire, nor stop start-up.
    """
    offers = registry.contested().get(name)
    if offers is None:
        return registry.entry(name)
    ours = next((e for e in offers if e.source.distribution == OWN_DISTRIBUTION), None)
    if ours is not None:
        others = ", ".join(str(entry.source) for entry in offers if entry is not ours)
        logger.warning(
            "%s %r is also offered by %s; taking %s. --prefer %s:%s=PLUGIN decides otherwise",
            registry.kind.title, name, others, ours.source, registry.kind.name, name,
        )  # fmt: skip
    return ours


def _default_entry(registry: Registry[Any], name: str) -> Entry:
    """Return who serves a default.

    Raises:
        PluginError: Nobody does, or several strangers.
    """
    return _ours(registry, name) or registry.entry(name)


def _rejections(refusals: Mapping[str, str | None], chosen: str) -> tuple[Rejection, ...]:
    return tuple(
        Rejection(name, reason or f"it can; {chosen} was preferred")
        for name, reason in refusals.items()
        if name != chosen
    )


def _choose_specs(registries: Registries, description: ModelDescription) -> tuple[Choice, ...]:
    names = dict.fromkeys(layer.spec for layer in description.kv_layers)
    return tuple(
        Choice(
            "KV-cache spec", _default_entry(registries.kv_cache_specs, name), "named by the model"
        )
        for name in names
    )


def _choose_samplers(registries: Registries, wanted: Iterable[str]) -> tuple[Choice, ...]:
    """Expand `default`, and order the steps by stage and name."""
    names: dict[str, str] = {}
    for name in wanted:
        if name == "default":
            names |= dict.fromkeys(DEFAULT_SAMPLERS, "built in")
        else:
            names[name] = "asked for"
    entries = [
        _default_entry(registries.samplers, name)
        if why == "built in"
        else registries.samplers.entry(name)
        for name, why in names.items()
    ]
    entries.sort(key=lambda entry: (STAGES.index(entry.capabilities.stage), entry.name))
    draws = [entry.name for entry in entries if entry.capabilities.stage == "draw"]
    if len(draws) != 1:
        raise SettingsError(
            f"samplers need exactly one step that draws, got {', '.join(draws) or 'none'}; "
            "write `--samplers default NAME` to add NAME to the built-in ones"
        )
    _check_fields(entries)
    return tuple(Choice("sampler", entry, names[entry.name]) for entry in entries)


def _check_fields(entries: Iterable[Entry]) -> None:
    """Check that steps which read the same request field mean the same by it."""
    owners: dict[str, tuple[RequestField, Entry]] = {}
    for entry in entries:
        for field in entry.capabilities.fields:
            known, owner = owners.setdefault(field.name, (field, entry))
            if (field.type, field.default) != (known.type, known.default):
                raise SettingsError(
                    f"samplers {owner.name!r} of {owner.source} and {entry.name!r} of "
                    f"{entry.source} both read the request field {field.name!r}, but with another "
                    "type or default; leave one of them out"
                )


def _choose_optional(
    registry: Registry[Any], wanted: str, default: str | None = None
) -> Choice | None:
    return None if wanted == NONE else _choose_named(registry, wanted, default)


def _choose_named(registry: Registry[Any], wanted: str, default: str | None = None) -> Choice:
    is_default = wanted == default
    entry = _default_entry(registry, wanted) if is_default else registry.entry(wanted)
    rejected = tuple(Rejection(name, "not asked for") for name in registry if name != wanted)
    why = "the default" if is_default else "by setting"
    return Choice(registry.kind.title, entry, why, rejected)


def _choose_parser(registry: Registry[Any], wanted: str, chat_template: str) -> Choice | None:
    if wanted != AUTO:
        return _choose_optional(registry, wanted)
    matches, rejected = [], []
    for name in registry:
        entry = _ours(registry, name)
        if entry is None:
            rejected.append(Rejection(name, "several plugins offer it"))
            continue
        markers = entry.capabilities.template_markers
        missing = [marker for marker in markers if marker not in chat_template]
        if not markers:
            rejected.append(Rejection(name, "it declares no markers for auto"))
        elif missing:
            rejected.append(Rejection(name, f"the chat template has no {missing[0]}"))
        elif entry.api not in entry.kind.apis:
            rejected.append(Rejection(name, f"it speaks version {entry.api} of the interface"))
        else:
            matches.append(entry)
    if not matches:
        return None
    best = max(matches, key=lambda entry: entry.capabilities.priority)
    rejected += [Rejection(e.name, f"{best.name} was preferred") for e in matches if e is not best]
    why = f"auto: the chat template has {' '.join(best.capabilities.template_markers)}"
    return Choice(registry.kind.title, best, why, tuple(rejected))


def _choose_lora(registries: Registries, settings: Settings, model: Choice) -> Choice | None:
    if not settings.lora.enable_lora:
        return None
    if not model.entry.capabilities.supports_lora:
        raise RefusedError(f"model {model.name!r} does not support LoRA; leave out --enable-lora")
    return _choose_optional(registries.lora_sources, settings.lora.lora_source, DEFAULT_LORA_SOURCE)


def _choose_executor(registries: Registries, wanted: str, tp_size: int) -> Choice:
    def serves(entry: Entry) -> bool:
        return bool(entry.capabilities.max_tensor_parallel_size >= tp_size)

    registry = registries.executors
    is_default = wanted == DEFAULT_EXECUTOR
    entry = _default_entry(registry, wanted) if is_default else registry.entry(wanted)
    if not serves(entry):
        able = [offer.name for offer in registry.offers() if serves(offer)]
        others = ", ".join(dict.fromkeys(able)) or "none installed"
        raise RefusedError(
            f"executor {wanted!r} runs at most {entry.capabilities.max_tensor_parallel_size} "
            f"device(s) a layer, and tensor_parallel_size is {tp_size}; can: {others}"
        )
    rejected = tuple(Rejection(name, "not asked for") for name in registry if name != wanted)
    return Choice("executor", entry, "the default" if is_default else "by setting", rejected)


def _check_batch_invariant(settings: Settings, device: str) -> None:
    if settings.model.batch_invariant and device != "cpu":
        raise RefusedError(
            f"batch-invariant mode is for the CPU, and the device is {device}; take --device cpu, "
            "or leave out --batch-invariant"
        )


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
