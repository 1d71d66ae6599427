"""Selection of kernels, and of CUDA graphs and CPU graphs."""

from collections.abc import Sequence
from itertools import chain, count, takewhile

from quire.compose.choices.choosing import ASKED_FOR, AUTO
from quire.compose.composition import Choice, Composition, Decision
from quire.config import Settings
from quire.errors import RefusedError
from quire.interfaces.model import ModelCapabilities
from quire.machine.machine import NATIVE_DTYPE, Machine

_TITLES = {"native": "native", "triton": "Triton"}
MAX_GRAPH_REQUESTS = 512  # if the user does not set max_cuda_graph_size
LEAST_CAPABILITY = 80  # compute capability of a GPU that our kernels are compiled and tested for


def choose_kernels(wanted: str, machine: Machine, device: str, dtype: str) -> Decision[str]:
    """Choose the kernels of layers and sampling: "torch", "triton" or "native".

    Raises:
        RefusedError: The kernels that the user asked for cannot run here.
    """
    if wanted == "torch":
        return Decision(wanted, ASKED_FOR)
    is_native = wanted == "native" or (wanted == AUTO and device == "cpu")
    best, reason = "native" if is_native else "triton", _triton_unavailable_reason(machine, device)
    if is_native:
        reason = _native_unavailable_reason(machine, device, dtype)
    if reason is None:
        supported = f"auto: this {'processor' if is_native else 'GPU'} supports them"
        return Decision(best, ASKED_FOR if wanted == best else supported)
    if wanted == AUTO:
        return Decision("torch", reason)
    way_out = "--kernels torch"
    if is_native and device == "cpu" and machine.native_unavailable_reason is None:
        way_out = f"--dtype {NATIVE_DTYPE}"
    raise RefusedError(f"{_TITLES[best]} kernels cannot run here: {reason}; use {way_out}")


def _native_unavailable_reason(machine: Machine, device: str, dtype: str) -> str | None:
    if device != "cpu":
        return f"the device is {device}, and they are for CPUs"
    return machine.native_refusal(dtype)


def _triton_unavailable_reason(machine: Machine, device: str) -> str | None:
    capability = machine.compute_capability
    if not machine.has_triton:
        return "the package triton is not installed"
    if device != "cuda" and not machine.interprets_kernels:
        return f"the device is {device}, where only Triton's interpreter can run them"
    if device == "cuda" and capability is not None and capability < LEAST_CAPABILITY:
        return (
            f"they need compute capability {LEAST_CAPABILITY / 10:.1f}, and this GPU has "
            f"{capability / 10:.1f}"
        )
    return None


def choose_cuda_graphs(
    settings: Settings, device: str, kernels: Decision[str], backends: Sequence[Choice]
) -> Decision[int]:
    """Choose the number of requests of the largest CUDA graph; 0: no graphs."""
    if settings.model.enforce_eager:
        return Decision(0, "none: --enforce-eager")
    if kernels.value != "triton":
        reason = f"none: {_why_kernels(kernels)}" if device == "cuda" else f"none on this {device}"
        return Decision(0, reason)
    unable = _without_graph_support(backends)
    if unable:
        return Decision(0, f"none: attention backend {unable[0]!r} does not support them")
    most = settings.scheduler.max_running
    size = min(most, settings.model.max_cuda_graph_size or MAX_GRAPH_REQUESTS)
    return Decision(size, f"decode steps of up to {size} of {most} requests")


def choose_cpu_graphs(
    settings: Settings,
    device: str,
    kernels: Decision[str],
    backends: Sequence[Choice],
    *,
    packs: bool,
    model: ModelCapabilities,
) -> Decision[bool]:
    """Choose whether decode steps are traced once as CPU graphs and replayed.

    Args:
        settings: Settings as given by the user.
        device: Device on which layers compute.
        kernels: Kernels of layers and sampling.
        backends: Attention backends of the model.
        packs: Whether a quantization method computes linear layers, and not torch.
        model: Capabilities of the model.
    """
    reason = _cpu_graphs_unavailable_reason(
        settings, device, kernels, backends, packs=packs, model=model
    )
    return Decision(reason is None, reason or "every part of a step supports them")


def _cpu_graphs_unavailable_reason(
    settings: Settings,
    device: str,
    kernels: Decision[str],
    backends: Sequence[Choice],
    *,
    packs: bool,
    model: ModelCapabilities,
) -> str | None:
    if device != "cpu":
        return f"the device is {device}"
    if settings.model.enforce_eager:
        return "--enforce-eager"
    if kernels.value != "native":
        return _why_kernels(kernels)
    if not model.supports_cpu_graphs:
        return "torch computes parts of the model"
    if not packs:
        return "torch computes linear layers"
    unable = _without_graph_support(backends)
    return f"attention backend {unable[0]!r} does not support them" if unable else None


def _why_kernels(kernels: Decision[str]) -> str:
    """Return why these kernels run: the option, or the reason that `auto` had."""
    if kernels.reason == ASKED_FOR:
        return f"--kernels {kernels.value}"
    return f"{_TITLES.get(kernels.value, kernels.value)} kernels: {kernels.reason}"


def _without_graph_support(backends: Sequence[Choice]) -> list[str]:
    """Return the names of the backends that cannot run in a graph."""
    return [choice.name for choice in backends if choice.entry.capabilities.graphs == "none"]


def graph_sizes(largest: int) -> list[int]:
    """Return the numbers of requests that graphs are captured for, in ascending order.

    From 16 on there are two sizes per power of two. So less than a third of a replayed step is
    padding, and up to 512 requests need 15 sizes.
    """
    larger = (size for octave in count() for size in (16 << octave, 24 << octave))
    sizes = takewhile(lambda size: size < largest, chain((1, 2, 4, 8), larger))
    return [*sizes, largest]


def num_captures(composition: Composition, *, is_last_stage: bool = True) -> int:
    """Return the number of captured graphs: forward pass and sampling, with and without LoRA.

    Args:
        composition: Choices for the engine.
        is_last_stage: Whether the pipeline stage samples.
    """
    if not composition.cuda_graphs.value:
        return 0
    sizes = len(graph_sizes(composition.cuda_graphs.value))
    functions = 2 if is_last_stage else 1
    return functions * sizes * (1 if composition.lora_source is None else 2)


def check_batch_invariant(settings: Settings, device: str, kernels: str) -> None:
    """Check that the kernels can be batch-invariant, if the user asked for it.

    Raises:
        RefusedError: They cannot.
    """
    if settings.model.batch_invariant and device == "cuda" and kernels != "triton":
        raise RefusedError(
            "batch-invariant mode on a GPU needs Triton kernels, and they are off; use --kernels "
            "triton, or leave out --batch-invariant"
        )
