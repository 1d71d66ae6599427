"""Triton kernels run on a GPU, and CUDA graphs need them: what can run here, and why not."""

from collections.abc import Sequence
from itertools import chain, count, takewhile

from quire.composition import Choice, Composition
from quire.config import Settings
from quire.errors import RefusedError
from quire.machine import Machine

MAX_GRAPH_REQUESTS = 512  # where the user does not say
LEAST_CAPABILITY = 80  # of a GPU that our kernels are compiled and tested for


def choose_kernels(wanted: str, machine: Machine, device: str) -> str:
    """Return what layers and sampling run: "torch" or "triton".

    Raises:
        RefusedError: Triton was asked for, and cannot run here.
    """
    if wanted == "torch":
        return wanted
    capability = machine.compute_capability
    if not machine.has_triton:
        reason = "the package triton is not installed"
    elif device != "cuda" and not machine.interprets_kernels:
        reason = f"the device is {device}, where only Triton's interpreter runs them"
    elif device != "cuda" and wanted == "auto":
        reason = "the interpreter is for tests"
    elif device == "cuda" and capability is not None and capability < LEAST_CAPABILITY:
        reason = (
            f"they need compute capability {LEAST_CAPABILITY / 10:.1f}, and this GPU has "
            f"{capability / 10:.1f}"
        )
    else:
        return "triton"
    if wanted == "triton":
        raise RefusedError(f"Triton kernels cannot run here: {reason}; take --kernels torch")
    return "torch"


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
    unable = [c.name for c in backends if c.entry.capabilities.graphs == "none"]
    if unable:
        return 0, f"none: attention backend {unable[0]!r} cannot run in one"
    most = settings.scheduler.max_running
    size = min(most, settings.model.max_cuda_graph_size or MAX_GRAPH_REQUESTS)
    return size, f"decode steps of up to {size} of {most} requests"


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
