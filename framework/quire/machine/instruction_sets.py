"""Which of a processor's instruction sets kernels are compiled for; the widest that it has.

Only flags that the processor reports are ever asked of the compiler, so no kernel meets an
instruction that is not there. (Linux leaves out of /proc/cpuinfo what it has not enabled.) Nothing
heavy is imported.
"""

import os
import platform
import subprocess
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from quire.errors import SettingsError

VARIABLE = "QUIRE_CPU_ISA"
CPU_INFO = Path("/proc/cpuinfo")
MAC_SYSCTL = "/usr/sbin/sysctl"
MAC_KEYS = ("machdep.cpu.features", "machdep.cpu.leaf7_features")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """What kernels are compiled for.

    Attributes:
        name: What people call it.
        architectures: Names of the processor's family, as the system gives them.
        needs: Flags that the processor must report.
        compiler_flags: What makes a compiler use it.
    """

    name: str
    architectures: frozenset[str]
    needs: frozenset[str]
    compiler_flags: tuple[str, ...]


_X86 = frozenset({"x86_64", "AMD64"})
_ARM = frozenset({"aarch64", "arm64"})
_AVX2_NEEDS = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2"})
# One by one: -march=x86-64-v3 is newer than GCC 10.
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2")
_AVX512_PARTS = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd")

INSTRUCTION_SETS = (  # the best first
    InstructionSet(
        "avx512",
        _X86,
        _AVX2_NEEDS.union(_AVX512_PARTS),
        (*_AVX2_FLAGS, *(f"-m{part}" for part in _AVX512_PARTS), "-mprefer-vector-width=512"),
    ),
    InstructionSet("avx2", _X86, _AVX2_NEEDS, _AVX2_FLAGS),
    InstructionSet("neon", _ARM, frozenset(), ("-march=armv8-a",)),
)


def choose(flags: Set[str], architecture: str, wanted: str | None = None) -> InstructionSet | str:
    """Return the instruction set to compile for, or why there is none.

    Args:
        flags: What the processor reports.
        architecture: As `platform.machine()` names it.
        wanted: The only one that will do; None: the best.

    Raises:
        SettingsError: There is no instruction set `wanted`, or the processor lacks it.
    """
    family = [known for known in INSTRUCTION_SETS if architecture in known.architectures]
    if wanted is not None:
        return _named(wanted, family, flags, architecture)
    if not family:
        return f"there are none for processors of the family {architecture}"
    fitting = (known for known in family if known.needs <= flags)
    return next(fitting, "; ".join(_lacking(known, flags) for known in family))


def here() -> InstructionSet | str:
    """Return the same for this machine; the environment may name one."""
    return choose(cpu_flags(), platform.machine(), os.environ.get(VARIABLE) or None)


def cpu_flags() -> frozenset[str]:
    """Return what the processor reports that it can do; nothing where nobody says."""
    if platform.system() == "Darwin":
        return _mac_flags()
    if not CPU_INFO.is_file():
        return frozenset()
    names = ("flags", "Features")  # x86, Arm
    lines = CPU_INFO.read_text().splitlines()
    found = next((line for line in lines if line.startswith(names)), "")
    return frozenset(found.partition(":")[2].split())


def _named(
    wanted: str, family: list[InstructionSet], flags: Set[str], architecture: str
) -> InstructionSet:
    for known in family:
        if known.name == wanted and known.needs <= flags:
            return known
        if known.name == wanted:
            raise SettingsError(
                f"{VARIABLE}={wanted} cannot run on this processor: {_lacking(known, flags)}; "
                f"unset {VARIABLE} to take what it has"
            )
    names = ", ".join(known.name for known in family) or "nothing"
    raise SettingsError(
        f"{VARIABLE} must be one of those for {architecture} ({names}), got {wanted!r}"
    )


def _lacking(known: InstructionSet, flags: Set[str]) -> str:
    return f"{known.name} needs {', '.join(sorted(known.needs - flags))}"


def _mac_flags() -> frozenset[str]:
    """Ask sysctl; a Mac with an Arm processor has none of these keys, and needs none."""
    command = (MAC_SYSCTL, "-n", *MAC_KEYS)
    said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    return frozenset(said.lower().split())
