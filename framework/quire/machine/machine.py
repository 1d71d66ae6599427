"""Properties of a machine that the choice of parts depends on, detected without torch."""

import os
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from quire.machine.cores import usable_cores
from quire.machine.instruction_sets import bf16_unavailable_reason, cpu_flags, here

NVIDIA_CONTROL = Path("/dev/nvidiactl")
BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
NATIVE_DTYPE = "float32"  # of the tensors that native kernels read and write


@dataclass(frozen=True)
class Machine:
    """Properties of a machine that the choice of parts depends on.

    Attributes:
        cpu_flags: Feature flags of its processor.
        has_cuda: Whether it has a GPU, and a torch that can use it.
        has_triton: Whether Triton is installed.
        interprets_kernels: Whether Triton kernels are interpreted on the CPU.
        compute_capability: Compute capability of the first CUDA device, 90 for 9.0; None if
            unknown.
        native_unavailable_reason: Reason why compiled CPU kernels cannot be used; None: they can,
            unless compiling them fails.
        native_bf16_unavailable_reason: Reason why compiled CPU kernels cannot multiply bfloat16;
            None: they can, if they can be used.
        num_gpus: Number of visible GPUs; None without a GPU or its driver.
        num_cores: Number of CPU cores that this process may use; None if unknown.
    """

    cpu_flags: frozenset[str]
    has_cuda: bool
    has_triton: bool = False
    interprets_kernels: bool = False
    compute_capability: int | None = None
    native_unavailable_reason: str | None = "the compiler was not looked for"
    native_bf16_unavailable_reason: str | None = "the instruction set was not looked for"
    num_gpus: int | None = None
    num_cores: int | None = None

    @classmethod
    def here(cls, *, native_unavailable_reason: str | None) -> "Machine":
        """Detect the machine that this process runs on.

        Args:
            native_unavailable_reason: Result of `native.availability`, which this package is below.
        """
        has_cuda, flags = _has_cuda(), cpu_flags()
        return cls(
            flags,
            has_cuda,
            has_triton=find_spec("triton") is not None,
            interprets_kernels=interprets_kernels(),
            compute_capability=_compute_capability() if has_cuda else None,
            native_unavailable_reason=native_unavailable_reason,
            native_bf16_unavailable_reason=bf16_unavailable_reason(here(), flags),
            num_gpus=_num_gpus() if has_cuda else None,
            num_cores=usable_cores()[0],
        )

    @cached_property
    def cpu_has_bf16(self) -> bool:
        """Whether the processor has instructions for bfloat16 matrix products."""
        return bool(self.cpu_flags & BF16_FLAGS)

    def native_refusal(self, dtype: str) -> str | None:
        """Return why native kernels cannot compute in a dtype on this CPU; None: they can."""
        if self.native_unavailable_reason is not None or dtype == NATIVE_DTYPE:
            return self.native_unavailable_reason
        if dtype != "bfloat16":
            return f"they compute in {NATIVE_DTYPE} or bfloat16, and the compute dtype is {dtype}"
        reason = self.native_bf16_unavailable_reason
        return None if reason is None else f"they cannot compute in bfloat16: {reason}"

    def dtype(self, wanted: str, checkpoint: str, device: str) -> tuple[str, str]:
        """Return the compute dtype and the reason for it.

        Args:
            wanted: Dtype as given by the user, or "auto".
            checkpoint: Dtype of the checkpoint's weights.
            device: "cpu" or "cuda".
        """
        if wanted != "auto":
            return wanted, "asked for"
        if device != "cpu" or checkpoint == "float32":
            return checkpoint, "the checkpoint's own"
        if checkpoint == "bfloat16" and self.native_unavailable_reason is None:
            reason = self.native_bf16_unavailable_reason
            if reason is None:
                return "bfloat16", (
                    "the checkpoint's own, and this processor multiplies it; --dtype float32 "
                    "computes without rounding"
                )
            return "float32", f"native kernels multiply bfloat16 weights in float32: {reason}"
        if checkpoint == "bfloat16" and self.cpu_has_bf16:
            return "bfloat16", "the checkpoint's own; this CPU has bfloat16 instructions"
        return "float32", f"{checkpoint} matrix products are many times slower on this CPU"

    def device(self, wanted: str) -> str:
        """Return the device to compute on, "cpu" or "cuda"."""
        return wanted if wanted != "auto" else "cuda" if self.has_cuda else "cpu"


def interprets_kernels() -> bool:
    """Whether Triton's interpreter runs the Triton kernels of this process, on a CPU and slowly."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _compute_capability() -> int | None:
    from quire.machine.nvml import cuda_compute_capability  # only needed with a GPU

    return cuda_compute_capability()


def _num_gpus() -> int | None:
    from quire.machine.nvml import cuda_device_count  # only needed with a GPU

    return cuda_device_count()


def _has_cuda() -> bool:
    """Whether there is an NVIDIA GPU, and a torch that was built for one."""
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip():
        return False  # the user has hidden all GPUs
    try:
        return NVIDIA_CONTROL.exists() and not version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False
