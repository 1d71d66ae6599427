"""Refusal of engines that were built for other instruction sets than those of the run.

In both directions: a build with AVX-512 where no engine may use it, and a build without it where
all instructions of the machine may be used.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from engine_process import EngineFailedError, EngineProcess

from quire.machine.instruction_sets import cpu_flags

WIDE = "avx512f"
UNLIMITED = ("openvino",)  # it obeys no variable
VLLM_LIBRARIES = r"^_C(_\w+)?\.abi3"


def cannot_be_limited(engine: str, isa: str) -> bool:
    """Return whether an engine would use other instruction sets than those of the run."""
    return isa != "native" and engine in UNLIMITED


def refuse_other_builds(process: EngineProcess, loaded: Mapping[str, Any], isa: str) -> None:
    """Check the instruction set that an engine reports.

    Raises:
        EngineFailedError: It uses another instruction set than the run's.
    """
    configuration = process.configuration
    uses = uses_avx512(configuration.engine, loaded, process.libraries(VLLM_LIBRARIES))
    what = wrong_build(uses, isa, cpu_flags())
    if what is not None:
        raise EngineFailedError(f"{configuration.label} {what}")


def uses_avx512(engine: str, loaded: Mapping[str, Any], libraries: list[str]) -> bool:
    """Return whether an engine's kernels are those for AVX-512, by its report or libraries."""
    if engine == "vllm":
        return not any("AVX2" in name for name in libraries)
    return "AVX512 = 1" in loaded["instruction_set"] or loaded["instruction_set"].lower() in (
        "avx512",
        "amx",
    )


def wrong_build(uses_avx512: bool, isa: str, flags: Set[str]) -> str | None:
    """Return the problem and the way out; None if there is none."""
    if isa == "avx2" and uses_avx512:
        return "uses AVX-512; name an environment whose build does not"
    if isa == "native" and WIDE in flags and not uses_avx512:
        return "uses no AVX-512, which this machine has; name an environment whose build does"
    return None
