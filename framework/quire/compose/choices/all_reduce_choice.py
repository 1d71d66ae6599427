"""Choice of the all-reduce of small tensors: torch's symmetric memory, or the group's own."""

from quire.compose.composition import Decision
from quire.config import Settings
from quire.machine.machine import Machine

SYMMETRIC_BYTES = 2**22  # larger tensors are added up by NCCL
LEAST_CAPABILITY = 80  # compute capability; torch's kernels add up bfloat16 from there on


def choose_symmetric_memory(settings: Settings, device: str, machine: Machine) -> Decision[bool]:
    """Choose whether the ranks of a tensor-parallel group try to use symmetric memory.

    Whether they can is known once they have started: their GPUs must reach each other.
    """
    reason = _unavailable_reason(settings, device, machine)
    if reason is not None:
        return Decision(False, reason)
    mebibytes = SYMMETRIC_BYTES // 2**20
    return Decision(
        True, f"for up to {mebibytes} MiB, if the GPUs of a group reach each other; NCCL for others"
    )


def _unavailable_reason(settings: Settings, device: str, machine: Machine) -> str | None:
    capability = machine.compute_capability
    if settings.parallel.tensor_parallel_size == 1:
        return "each layer is on one device"
    if device != "cuda":
        return f"the device is {device}"
    if not settings.parallel.symmetric_memory:
        return "--no-symmetric-memory"
    if capability is not None and capability < LEAST_CAPABILITY:
        return f"it needs compute capability 8.0, and this GPU has {capability / 10:.1f}"
    return None
