"""Selection of every part of an engine, from settings, registries and the model's config.

Nothing heavy is imported here. Parts are chosen by the capabilities that they declared at
registration. The resulting `Composition` records each choice with its distribution, version and
reason, and the reasons against the alternatives. `quire explain` prints it, the start-up log
reports it, and processes of one engine compare it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

from quire.compose.checkpoint import Checkpoint
from quire.compose.choices.all_reduce_choice import choose_symmetric_memory
from quire.compose.choices.attention_choice import (
    ChosenBackends,
    attention_queries,
    choose_attention_backends,
    common_block_size,
)
from quire.compose.choices.checkpoint_codes import describe_codes
from quire.compose.choices.choosing import AUTO, check_present, choose_named, choose_optional
from quire.compose.choices.dtype_choice import choose_dtype, native_machine
from quire.compose.choices.grid_choice import (
    check_devices,
    check_model,
    check_shards,
    check_worker_options,
    choose_executor,
    divided_sizes,
)
from quire.compose.choices.kernel_choice import (
    check_batch_invariant,
    choose_cpu_graphs,
    choose_cuda_graphs,
    choose_kernels,
)
from quire.compose.choices.lora_choice import choose_lora, choose_shipped_lora
from quire.compose.choices.model_choice import choose_model
from quire.compose.choices.parser_choice import ParsedModel, choose_parser
from quire.compose.choices.probes import Probe, cause_of
from quire.compose.choices.quantization_choice import (
    QuantizationQuery,
    choose_prepared,
    choose_quantization,
    with_dtype_of_prepared,
)
from quire.compose.choices.sampler_choice import choose_samplers
from quire.compose.choices.structured_output_choice import choose_structured_output
from quire.compose.composition import Choice, Composition, Rejection
from quire.compose.sizes.layer_specs import build_spec, layer_specs
from quire.compose.sizes.stage_layers import stage_layers
from quire.config import DEFAULT_SCHEDULING_POLICY, Settings
from quire.errors import RefusedError, SettingsError
from quire.interfaces.executor import WorkerGrid
from quire.interfaces.model import ModelDescription
from quire.machine.machine import Machine
from quire.native.availability import native_unavailable_reason
from quire.plugins.loading import Plugins, Registries
from quire.plugins.registry import check_api

KERNELS_OFF = "--kernels torch"
LAYERS_PROBE = "quire.native.layer_kernels.libraries:LAYERS.unavailable_reason"
ADAPTERS_PROBE = "quire.native.layer_kernels.libraries:ADAPTERS.unavailable_reason"


def compose(
    settings: Settings,
    plugins: Plugins,
    checkpoint: Checkpoint,
    chat_template: str = "",
    machine: Machine | None = None,
    probe: Probe | None = None,
    tokenizer_config: Mapping[str, Any] | None = None,
) -> Composition:
    """Choose every part of an engine.

    The probes of the chosen parts run before the choice is final: while one of them returns a
    reason why this machine cannot run its part, the parts are chosen again without that part.

    Args:
        settings: Settings as given by the user.
        plugins: Installed plugins.
        checkpoint: Files of the model; only its config is read.
        chat_template: Text of the chat template, in which `auto` looks for parsers' markers.
        machine: Machine to plan for; None: this one.
        probe: Function that runs probes; None: every part is expected to run.
        tokenizer_config: Content of tokenizer_config.json, which may describe parsers; None: it is
            empty.

    Raises:
        UnsupportedModelError: No plugin supports the architecture, or a feature of the model.
        PluginError: A part that the user named does not exist, fails to load, or does not support
            this model or machine.
        SettingsError: Options contradict the model.
        RefusedError: A guarantee that the user asked for cannot be given.
    """
    machine = machine or _this_machine()
    parsed = ParsedModel(checkpoint.architecture, chat_template, tokenizer_config or {})
    parts: dict[str, str] = {}  # names of the parts whose probes have run, by probe
    unavailable: dict[str, str] = {}  # reasons, by probe
    while True:
        composition = _compose(settings, plugins, checkpoint, parsed, machine, unavailable)
        rejections = tuple(Rejection(parts[name], reason) for name, reason in unavailable.items())
        composition = replace(composition, unavailable=rejections)
        if probe is None:
            return composition
        chosen = _probes(composition)
        pending = {name: part for name, part in chosen.items() if name not in parts}
        found = {name: reason for name, reason in probe(pending).items() if reason is not None}
        if not found:
            return composition
        if settings.model.kernels == "native":
            _check_native(composition, pending, found)
        parts |= pending
        unavailable |= found


def _probes(composition: Composition) -> dict[str, str]:
    """Return the probes of the chosen parts: import string -> name of the part for people."""
    probes = {}
    if composition.kernels.value == "native":
        probes[LAYERS_PROBE] = "the native kernels of layers"
        if composition.lora_source is not None:
            probes[ADAPTERS_PROBE] = "the native kernels of adapters"
    parts = (*composition.attention_backends, *composition.samplers, composition.quantization.value)
    declared = ((part.entry.capabilities.probe, str(part)) for part in parts if part is not None)
    return probes | {name: part for name, part in declared if name is not None}


def _native_probes(composition: Composition) -> set[str]:
    """Return the probes of the chosen parts that run native kernels."""
    method = composition.quantization.value
    found = {LAYERS_PROBE, ADAPTERS_PROBE}
    for backend in composition.attention_backends:
        if backend.entry.capabilities.needs_native:
            found.add(backend.entry.capabilities.probe)
    for step in composition.samplers:
        if step.entry.capabilities.needs_kernels == "native":
            found.add(step.entry.capabilities.probe)
    if method is not None and "native" in (method.entry.capabilities.kernels or ()):
        found.add(method.entry.capabilities.probe)
    return found


def _check_native(
    composition: Composition, probed: Mapping[str, str], reasons: Mapping[str, str]
) -> None:
    """Check that all native kernels run, which the user has asked for.

    Raises:
        RefusedError: Some do not.
    """
    native = _native_probes(composition)
    for name, reason in reasons.items():
        if name in native:
            raise RefusedError(
                f"--kernels native: {probed[name]} cannot be used here: {reason}; use "
                "--kernels torch"
            )


def _compose(
    settings: Settings,
    plugins: Plugins,
    checkpoint: Checkpoint,
    parsed: ParsedModel,
    machine: Machine,
    unavailable: Mapping[str, str],
) -> Composition:
    """Choose every part of an engine, as `compose` does, without parts that cannot run.

    Args:
        settings: Settings as given by the user.
        plugins: Installed plugins.
        checkpoint: Files of the model.
        parsed: What is known of the model for the choice of parsers.
        machine: Machine to plan for.
        unavailable: Reasons why parts cannot run on this machine, by their probes.
    """
    registries = plugins.registries
    model, description = choose_model(registries.models, settings.model, checkpoint)
    description = with_dtype_of_prepared(description)
    machine = _usable_machine(machine, settings, registries, unavailable)
    device = machine.device(settings.model.device)
    settings = settings.for_device(device)
    machine = native_machine(machine, settings, registries, description, device, unavailable)
    dtype = choose_dtype(settings, registries, machine, description, device)
    grid = WorkerGrid(
        settings.parallel.tensor_parallel_size, settings.parallel.pipeline_parallel_size
    )
    inputs = _Inputs(
        settings, registries, model, description, machine, device, dtype.value, unavailable
    )
    parts = settings.parts
    lora_source = choose_lora(registries, settings.lora, model)
    composition = Composition(
        quire_version=version("quire"),
        checkpoint=checkpoint,
        description=description,
        machine=machine,
        device=device,
        dtype=dtype,
        kv_dtype=settings.cache.kv_dtype(dtype.value),
        max_model_len=_max_model_len(settings.model.max_model_len, description),
        model=model,
        kv_cache_specs=_choose_specs(registries, description),
        structured_output=choose_structured_output(
            registries.structured_output, parts.structured_output
        ),
        tool_parser=choose_parser(registries.tool_parsers, parts.tool_call_parser, parsed),
        reasoning_parser=choose_parser(
            registries.reasoning_parsers, parts.reasoning_parser, parsed
        ),
        lora_source=lora_source,
        shipped_lora_source=choose_shipped_lora(registries, lora_source, checkpoint.adapters),
        scheduling_policy=choose_named(
            registries.scheduling_policies,
            settings.scheduler.scheduling_policy,
            DEFAULT_SCHEDULING_POLICY,
        ),
        kv_store=choose_optional(registries.kv_stores, settings.cache.kv_store),
        executor=choose_executor(
            registries, settings.parallel.executor, grid, settings.parallel.data_parallel_size
        ),
        grid=grid,
        stage_layers=(range(description.num_layers),),
        **_computing_parts(inputs),
    )
    for choice in composition.choices:
        check_api(choice.entry)
        check_present(choice.entry)
    check_worker_options(settings.parallel, composition.executor)
    if grid.size == 1 and not settings.parallel.pipeline_layers:
        return composition
    return _divided(composition, settings, registries)


def _divided(composition: Composition, settings: Settings, registries: Registries) -> Composition:
    """Return the composition with the layers of each pipeline stage.

    Raises:
        QuireError: The grid cannot run this model here.
    """
    grid, description = composition.grid, composition.description
    check_model(composition.model, description, grid)

    def check_specs(tp_size: int) -> None:
        kinds = {
            replace(kv, name="", layer_index=None): kv for kv in reversed(description.kv_layers)
        }
        for layer in kinds.values():
            build_spec(registries, composition, layer, tp_size)

    divided = divided_sizes(description, settings.parallel.enable_expert_parallel)
    check_shards(divided, grid.tp_size, check_specs)
    executor = composition.executor.entry.capabilities
    specs = layer_specs(settings, composition, registries)
    layers = stage_layers(settings, composition, specs)
    check_devices(grid, composition.machine, composition.device, executor)
    return replace(composition, stage_layers=layers)


def _choose_specs(registries: Registries, description: ModelDescription) -> tuple[Choice, ...]:
    names = dict.fromkeys(layer.spec for layer in description.kv_layers)
    return tuple(
        Choice("KV-cache spec", registries.kv_cache_specs.entry(name), "named by the model")
        for name in names
    )


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of the choice of computing parts."""

    settings: Settings
    registries: Registries
    model: Choice
    description: ModelDescription
    machine: Machine
    device: str
    dtype: str
    unavailable: Mapping[str, str]


def _computing_parts(inputs: _Inputs) -> dict[str, Any]:
    """Choose the kernels and all parts that depend on them.

    Returns:
        Fields of a `Composition`.
    """
    settings, registries, device = inputs.settings, inputs.registries, inputs.device
    unavailable = inputs.unavailable
    kernels = choose_kernels(settings.model.kernels, inputs.machine, device, inputs.dtype)
    check_batch_invariant(settings, device, kernels.value)
    query = QuantizationQuery(
        device, inputs.dtype, kernels, inputs.description.checkpoint_dtype, unavailable
    )
    prepared = choose_prepared(registries, inputs.description, query)
    quantization = choose_quantization(
        registries, settings.model.quantization, inputs.description, query
    )
    attention = _attention(inputs, kernels.value)
    return {
        "kernels": kernels,
        "prepared_quantization": prepared,
        "checkpoint_codes": describe_codes(prepared, inputs.description),
        "quantization": quantization,
        "block_size": _block_size(settings, attention),
        "attention_backends": attention.backends,
        "layer_backends": attention.layer_backends,
        "cuda_graphs": choose_cuda_graphs(settings, device, kernels, attention.backends),
        "cpu_graphs": choose_cpu_graphs(
            settings,
            device,
            kernels,
            attention.backends,
            packs=quantization.value is not None,
            model=inputs.model.entry.capabilities,
        ),
        "symmetric_memory": choose_symmetric_memory(settings, device, inputs.machine),
        "samplers": choose_samplers(
            registries, settings.parts.samplers, kernels.value, unavailable
        ),
    }


def _this_machine() -> Machine:
    """Detect this machine, including whether C++ kernels can be compiled."""
    return Machine.here(native_unavailable_reason=native_unavailable_reason())


def _usable_machine(
    machine: Machine,
    settings: Settings,
    registries: Registries,
    unavailable: Mapping[str, str],
) -> Machine:
    """Return the machine as the engine may use it.

    It has no native kernels if those of the layers cannot run. `--kernels torch` disables them,
    unless the user names an attention backend that needs them.
    """
    broken = unavailable.get(LAYERS_PROBE) or unavailable.get(ADAPTERS_PROBE)
    if broken is not None:
        machine = replace(machine, native_unavailable_reason=cause_of(broken))
    wanted, registry = settings.parts.attention_backend, registries.attention_backends
    is_asked_for = wanted != AUTO and registry.entry(wanted).capabilities.needs_native
    if settings.model.kernels != "torch" or is_asked_for:
        return machine
    return replace(machine, native_unavailable_reason=KERNELS_OFF)


def _attention(inputs: _Inputs, kernels: str) -> ChosenBackends:
    queries = attention_queries(
        inputs.settings,
        inputs.registries,
        inputs.description,
        inputs.device,
        inputs.dtype,
        kernels,
        inputs.machine,
    )
    wanted = inputs.settings.parts.attention_backend
    return choose_attention_backends(inputs.registries, wanted, queries, inputs.unavailable)


def _block_size(settings: Settings, attention: ChosenBackends) -> int:
    return settings.cache.block_size or common_block_size(attention.backends)


def _max_model_len(wanted: int | None, description: ModelDescription) -> int:
    longest = description.max_model_len
    if wanted is not None and wanted > longest:
        raise SettingsError(
            f"max_model_len is {wanted}, but the model's maximum length is {longest}"
        )
    return wanted or longest
