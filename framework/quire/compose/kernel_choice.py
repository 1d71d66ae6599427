"""What runs is what was asked for, or the best kernels that can: which those are, and why."""

from collections.abc import Sequence
from itertools import chain, count, takewhile

from quire.compose.choosing import ASKED_FOR, AUTO
from quire.compose.composition import Choice, Composition
from quire.config import Settings
from quire.errors import RefusedError
from quire.machine.machine import Machine

NATIVE_DTYPE = "float32"
_TITLES = {"native": "native", "triton": "Triton"}
MAX_GRAPH_REQUESTS = 512  # where the user does not say
LEAST_CAPABILITY = 80  # of a GPU that our kernels are compiled and tested for


def choose_kernels(wanted: str, machine: Machine, device: str, dtype: str) -> tuple[str, str]:
    """Return what layers and sampling run, "torch", "triton" or "native", and why.

    Raises:
        RefusedError: What was asked for cannot run here.
    """
    if wanted == "torch":
        return wanted, ASKED_FOR
    is_native = wanted == "native" or (wanted == AUTO and device == "cpu")
    best, reason = "native" if is_native else "triton", _triton_unavailable_reason(machine, device)
    if is_native:
        reason = _native_unavailable_reason(machine, device, dtype)
    if reason is None:
        return best, ASKED_FOR if wanted == best else "auto: they can run here"
    if wanted == AUTO:
        return "torch", reason
    way_out = "--kernels torch"
    if is_native and device == "cpu" and dtype != NATIVE_DTYPE:
        way_out = f"--dtype {NATIVE_DTYPE}"
    raise RefusedError(f"{_TITLES[best]} kernels cannot run here: {reason}; take {way_out}")


def _native_unavailable_reason(machine: Machine, device: str, dtype: str) -> str | None:
    if device != "cpu":
        return f"the device is {device}, and they are for CPUs"
    if dtype != NATIVE_DTYPE:
        return f"they compute in {NATIVE_DTYPE}, and the compute type is {dtype}"
    return machine.native_unavailable_reason


def _triton_unavailable_reason(machine: Machine, device: str) -> str | None:
    capability = machine.compute_capability
    if not machine.has_triton:
        return "the package triton is not installed"
    if device != "cuda" and not machine.interprets_kernels:
        return f"the device is {device}, where only Triton's interpreter runs them"
    if device == "cuda" and capability is not None and capability < LEAST_CAPABILITY:
        return (
            f"they need compute capability {LEAST_CAPABILITY / 10:.1f}, and this GPU has "
            f"{capability / 10:.1f}"
        )
    return None


def choose_graphs(
    settings: Settings, device: str, kernels: str, backends: Sequence[Choice]
) -> tuple[int, str]:
    """Return the requests of the largest step that is captured as a CUDA graph, and why so many."""
    if settings.model.enforce_eager:
        return 0, "none: --enforce-eager"
    if kernels != "triton":
        return 0, f"none: --kernels {kernels}" if device == "cuda" else f"none on this {device}"
    if settings.parallel.tensor_parallel_size > 1:
        return 0, "none: several devices share each layer"
    unable = _need_the_host(backends)
    if unable:
        return 0, f"none: attention backend {unable[0]!r} cannot run in one"
    most = settings.scheduler.max_running
    size = min(most, settings.model.max_cuda_graph_size or MAX_GRAPH_REQUESTS)
    return size, f"decode steps of up to {size} of {most} requests"


def tracing_unavailable_reason(
    settings: Settings, device: str, kernels: str, backends: Sequence[Choice], *, packs: bool
) -> str | None:
    """Return why calls of decode steps are not recorded and repeated; None: they are.

    Args:
        settings: What the user asked for.
        device: Where layers compute.
        kernels: What they run.
        backends: Who attends.
        packs: Whether linear layers are multiplied by a quantization method, and not by torch.
    """
    if device != "cpu":
        return f"the device is {device}"
    if settings.model.enforce_eager:
        return "--enforce-eager"
    if kernels != "native":
        return f"--kernels {kernels}"
    if not packs:
        return "torch multiplies"
    if settings.parallel.tensor_parallel_size > 1:
        return "several devices share each layer"
    unable = _need_the_host(backends)
    return f"attention backend {unable[0]!r} needs the host" if unable else None


def _need_the_host(backends: Sequence[Choice]) -> list[str]:
    """Return who cannot run in a step of which the host knows nothing."""
    return [choice.name for choice in backends if choice.entry.capabilities.graphs == "none"]


def graph_sizes(largest: int) -> list[int]:
    """Return the numbers of requests that steps are captured for, the smallest first.

    From 16 on there are two sizes in each octave: less than a third of a larger step is padding,
    and 512 requests need 15 sizes.
    """
    larger = (size for octave in count() for size in (16 << octave, 24 << octave))
    sizes = takewhile(lambda size: size < largest, chain((1, 2, 4, 8), larger))
    return [*sizes, largest]


def num_captures(composition: Composition) -> int:
    """Return how many graphs are captured: a step and its draw, again for steps with adapters."""
    if not composition.max_graph_requests:
        return 0
    sizes = len(graph_sizes(composition.max_graph_requests))
    return 2 * sizes * (1 if composition.lora_source is None else 2)


def check_batch_invariant(settings: Settings, device: str, kernels: str) -> None:
    """Check that equal bits can be promised with these kernels.

    Raises:
        RefusedError: They cannot.
    """
    if settings.model.batch_invariant and device == "cuda" and kernels != "triton":
        raise RefusedError(
            "batch-invariant mode on a GPU needs Triton kernels, and they are off; take --kernels "
            "triton, or leave out --batch-invariant"
        )
