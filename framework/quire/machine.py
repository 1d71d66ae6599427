"""What this machine is good at, found out without torch, so that planning stays light."""

from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
NVIDIA_CONTROL = Path("/dev/nvidiactl")
BF16_FLAGS = frozenset({"amx_bf16", "avx512_bf16", "bf16"})


@dataclass(frozen=True)
class Machine:
    """A computer, as far as an engine's choices depend on it."""

    cpu_flags: frozenset[str]
    has_cuda: bool

    @classmethod
    def here(cls) -> "Machine":
        """Look at the machine that this process runs on."""
        return cls(_cpu_flags(), _has_cuda())

    @cached_property
    def cpu_has_bf16(self) -> bool:
        """Whether bfloat16 matrix products have instructions of their own here."""
        return bool(self.cpu_flags & BF16_FLAGS)

    def dtype(self, wanted: str, checkpoint: str, device: str) -> tuple[str, str]:
        """Return the compute dtype and the reason for it.

        Args:
            wanted: What the user asks for; "auto" leaves it to us.
            checkpoint: The dtype of the checkpoint's weights.
            device: "cpu" or "cuda".
        """
        if wanted != "auto":
            return wanted, "asked for"
        if device != "cpu" or checkpoint == "float32":
            return checkpoint, "the checkpoint's own"
        if checkpoint == "bfloat16" and self.cpu_has_bf16:
            return "bfloat16", "the checkpoint's own; this CPU has bfloat16 instructions"
        return "float32", f"{checkpoint} matrix products are many times slower on this CPU"

    def device(self, wanted: str) -> str:
        """Return the device to compute on."""
        return wanted if wanted != "auto" else "cuda" if self.has_cuda else "cpu"


def _cpu_flags() -> frozenset[str]:
    if not CPU_INFO.is_file():
        return frozenset()
    names = ("flags", "Features")  # x86, Arm
    lines = CPU_INFO.read_text().splitlines()
    found = next((line for line in lines if line.startswith(names)), "")
    return frozenset(found.partition(":")[2].split())


def _has_cuda() -> bool:
    """Whether there is an NVIDIA GPU, and a torch that was built for one."""
    try:
        return NVIDIA_CONTROL.exists() and not version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False
