"""CPU instruction sets for which kernels are compiled: the widest that the processor supports.

The compiler may only use features that the processor reports, so no kernel has an unsupported
instruction. (/proc/cpuinfo leaves out features that Linux has not enabled.) Nothing heavy is
imported.
"""

import os
import platform
import subprocess
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from quire.errors import SettingsError

VARIABLE = "QUIRE_CPU_ISA"
CPU_INFO = Path("/proc/cpuinfo")
MAC_SYSCTL = "/usr/sbin/sysctl"
MAC_KEYS = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
MAC_ARM_KEYS = {"asimddp": "hw.optional.arm.FEAT_DotProd"}  # by flag; their value is 1


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """An instruction set that kernels can be compiled for.

    Attributes:
        name: Name for people.
        architectures: Names of the processor architecture, as `platform.machine()` returns them.
        needs: Flags that the processor must report.
        compiler_flags: Compiler flags that enable it.
        bf16_flags: Flags of instructions that multiply bfloat16 and that kernels for this set use.
            The processor must report one of them.
    """

    name: str
    architectures: frozenset[str]
    needs: frozenset[str]
    compiler_flags: tuple[str, ...]
    bf16_flags: frozenset[str] = frozenset()


_X86 = frozenset({"x86_64", "AMD64"})
_ARM = frozenset({"aarch64", "arm64"})
_AVX2_NEEDS = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2"})
# Single flags, because -march=x86-64-v3 needs GCC 11.
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2")
_AVX512_PARTS = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd")
_AVX512_NEEDS = _AVX2_NEEDS.union(_AVX512_PARTS)
_AVX512_FLAGS = (
    *_AVX2_FLAGS,
    *(f"-m{part}" for part in _AVX512_PARTS),
    "-mprefer-vector-width=512",
)
_AMX_NEEDS = frozenset({"amx_tile", "amx_int8", "amx_bf16", "avx512_vnni", "avx512_bf16"})

INSTRUCTION_SETS = (  # the best first
    InstructionSet(
        "amx",
        _X86,
        _AVX512_NEEDS | _AMX_NEEDS,
        # A macro: kernels use its instructions in assembly, and GCC before version 11 has no flags.
        (*_AVX512_FLAGS, "-DQUIRE_AMX=1"),
        bf16_flags=frozenset({"amx_bf16", "avx512_bf16"}),
    ),
    InstructionSet(
        "avx512", _X86, _AVX512_NEEDS, _AVX512_FLAGS, bf16_flags=frozenset({"avx512_bf16"})
    ),
    InstructionSet("avx2", _X86, _AVX2_NEEDS, _AVX2_FLAGS),
    InstructionSet("neon", _ARM, frozenset(), ("-march=armv8-a",)),
)


def choose(flags: Set[str], architecture: str, wanted: str | None = None) -> InstructionSet | str:
    """Return the instruction set to compile for, or the reason why there is none.

    Args:
        flags: Flags that the processor reports.
        architecture: Architecture, as `platform.machine()` returns it.
        wanted: Name of the required instruction set; None: the best.

    Raises:
        SettingsError: There is no instruction set `wanted`, or the processor lacks it.
    """
    family = [known for known in INSTRUCTION_SETS if architecture in known.architectures]
    if wanted is not None:
        return _named(wanted, family, flags, architecture)
    if not family:
        return f"there are none for processors of the architecture {architecture}"
    supported = (known for known in family if known.needs <= flags)
    return next(supported, "; ".join(_missing_flags(known, flags) for known in family))


def here() -> InstructionSet | str:
    """Return the same for this machine; QUIRE_CPU_ISA may name one."""
    return choose(cpu_flags(), platform.machine(), os.environ.get(VARIABLE) or None)


def bf16_unavailable_reason(chosen: InstructionSet | str, flags: Set[str]) -> str | None:
    """Return why compiled kernels cannot multiply bfloat16; None: they can.

    Args:
        chosen: Result of `here` or `choose`.
        flags: Flags that the processor reports.
    """
    if isinstance(chosen, str):
        return chosen
    if not chosen.bf16_flags:
        return f"kernels for {chosen.name} do not multiply bfloat16"
    if chosen.bf16_flags & flags:
        return None
    return f"this processor does not report {' or '.join(sorted(chosen.bf16_flags))}"


def cpu_flags() -> frozenset[str]:
    """Return the feature flags of the processor; empty if they are unknown."""
    if platform.system() == "Darwin":
        return _mac_flags(MAC_SYSCTL)
    return _flags_in(CPU_INFO)


@cache
def _flags_in(file: Path) -> frozenset[str]:
    """Return the flags in a file of the system; they do not change while a process runs."""
    if not file.is_file():
        return frozenset()
    names = ("flags", "Features")  # x86, Arm
    lines = file.read_text().splitlines()
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
                f"{VARIABLE}={wanted} cannot run on this processor: "
                f"{_missing_flags(known, flags)}; unset {VARIABLE} to use the best supported one"
            )
    names = ", ".join(known.name for known in family) or "none"
    raise SettingsError(
        f"{VARIABLE} must be one of those for {architecture} ({names}), got {wanted!r}"
    )


def _missing_flags(known: InstructionSet, flags: Set[str]) -> str:
    return f"{known.name} needs {', '.join(sorted(known.needs - flags))}"


@cache
def _mac_flags(sysctl: str) -> frozenset[str]:
    """Return the flags from sysctl, which prints nothing for keys of other processors."""
    listed = _value_on_mac(sysctl, MAC_KEYS).lower().split()
    arm = (flag for flag, key in MAC_ARM_KEYS.items() if _value_on_mac(sysctl, (key,)) == "1")
    return frozenset(listed).union(arm)


def _value_on_mac(sysctl: str, keys: Sequence[str]) -> str:
    command = (sysctl, "-n", *keys)
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.strip()
