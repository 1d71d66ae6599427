"""Selection of the compute dtype: the checkpoint's where the processor multiplies it.

On a CPU, bfloat16 is the dtype of native kernels only if all parts of the engine agree: a
quantization method multiplies in it, and attention backends store it. Otherwise these kernels
compute in float32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from quire.compose.choices.attention_choice import attention_queries, choose_attention_backends
from quire.compose.choices.choosing import ASKED_FOR, AUTO, NONE
from quire.compose.choices.quantization_choice import (
    QuantizationQuery,
    choose_prepared,
    choose_quantization,
)
from quire.compose.composition import NATIVE, Decision, hidden_dtype
from quire.config import DTYPES, Settings
from quire.errors import RefusedError, UnsupportedModelError
from quire.interfaces.model import ModelDescription
from quire.machine.machine import NATIVE_DTYPE, Machine
from quire.plugins.loading import Registries

BFLOAT16 = "bfloat16"


def native_machine(
    machine: Machine,
    settings: Settings,
    registries: Registries,
    description: ModelDescription,
    device: str,
    unavailable: Mapping[str, str],
) -> Machine:
    """Return the machine without bfloat16 in native kernels if a part of the engine lacks it.

    Args:
        machine: Machine to plan for.
        settings: Settings as given by the user.
        registries: Registries of the installed plugins.
        description: Description of the model.
        device: "cpu" or "cuda".
        unavailable: Reasons why parts cannot run on this machine, by their probes.
    """
    if device != "cpu" or machine.native_refusal(BFLOAT16) is not None:
        return machine
    reason = _refusal_of_parts(machine, settings, registries, description, unavailable)
    return replace(machine, native_bf16_unavailable_reason=reason)


def choose_dtype(
    settings: Settings,
    registries: Registries,
    machine: Machine,
    description: ModelDescription,
    device: str,
) -> Decision[str]:
    """Choose the compute dtype.

    On a CPU, a named part that needs hidden states in float32 overrides the dtype that the machine
    is fastest at.

    Args:
        settings: Settings as given by the user.
        registries: Registries of the installed plugins.
        machine: Machine to plan for, as returned by `native_machine`.
        description: Description of the model.
        device: "cpu" or "cuda".

    Raises:
        UnsupportedModelError: The checkpoint's dtype should be taken, and no layer computes in it.
    """
    wanted, stored = settings.model.dtype, description.checkpoint_dtype
    if wanted == AUTO and stored not in DTYPES[1:]:
        raise UnsupportedModelError(
            f"{description.architecture}: dtype {stored!r} in config.json is not among "
            f"{', '.join(DTYPES[1:])}; correct it, or give --dtype {DTYPES[1]}"
        )
    dtype = Decision(*machine.dtype(wanted, stored, device))
    if wanted != AUTO or device != "cpu":
        return dtype
    is_native = machine.native_refusal(dtype.value) is None
    hidden = hidden_dtype(dtype.value, NATIVE) if is_native else dtype.value
    for part, served in _named_parts(settings, registries, description):
        if hidden not in served and NATIVE_DTYPE in served:
            return Decision(NATIVE_DTYPE, f"{part} computes in it")
    return dtype


def _refusal_of_parts(
    machine: Machine,
    settings: Settings,
    registries: Registries,
    description: ModelDescription,
    unavailable: Mapping[str, str],
) -> str | None:
    """Return why the parts of an engine with native kernels cannot compute in bfloat16."""
    if settings.model.kernels not in (AUTO, NATIVE):
        return f"--kernels {settings.model.kernels}"
    kernels = Decision(NATIVE, ASKED_FOR)
    stored, wanted = description.checkpoint_dtype, settings.model.quantization
    query = QuantizationQuery("cpu", BFLOAT16, kernels, stored, unavailable)
    queries = attention_queries(settings, registries, description, "cpu", BFLOAT16, NATIVE, machine)
    try:
        choose_prepared(registries, description, query)
        method = choose_quantization(registries, wanted, description, query)
        choose_attention_backends(
            registries, settings.parts.attention_backend, queries, unavailable
        )
    except RefusedError as error:
        return str(error)
    if method.value is not None:
        return None
    if wanted == NONE:
        return f"with --quantization {NONE} torch computes linear layers"
    return f"no quantization method multiplies it: {method.reason}"


def _named_parts(
    settings: Settings, registries: Registries, description: ModelDescription
) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each part that the user named, with its compute dtypes.

    Its device is checked where the part is chosen.
    """
    if settings.model.kernels == NATIVE:
        yield f"--kernels {NATIVE}", frozenset({NATIVE_DTYPE})
    method = description.quantization or settings.model.quantization
    named = (
        ("--quantization", method, registries.quantizations),
        ("--attention-backend", settings.parts.attention_backend, registries.attention_backends),
    )
    for option, name, registry in named:
        if name in (AUTO, NONE) or name not in registry:
            continue  # an unknown name is refused where the part is chosen
        yield f"{option} {name}", registry.entry(name).capabilities.dtypes
