"""An engine that was built for other instructions than the run is about takes no part in it.

In both directions: AVX-512 where all engines are to do without it, and a build that knows none
where all of the machine counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from engine_process import EngineFailedError, EngineProcess

from quire.machine.instruction_sets import cpu_flags

WIDE = "avx512f"
VLLM_LIBRARIES = r"^_C(_\w+)?\.abi3"


def refuse_other_builds(process: EngineProcess, loaded: Mapping[str, Any], isa: str) -> None:
    """Look at what an engine says that it uses.

    Raises:
        EngineFailedError: It uses other instructions than it should.
    """
    way = process.configuration
    uses = uses_avx512(way.engine, loaded, process.libraries(VLLM_LIBRARIES))
    what = wrong_build(uses, isa, cpu_flags())
    if what is not None:
        raise EngineFailedError(f"{way.label} {what}")


def uses_avx512(engine: str, loaded: Mapping[str, Any], libraries: list[str]) -> bool:
    """Return whether an engine's kernels are those for AVX-512, by its own words or libraries."""
    if engine == "vllm":
        return not any("AVX2" in name for name in libraries)
    return "AVX512 = 1" in loaded["instruction_set"] or loaded["instruction_set"].lower() in (
        "avx512",
        "amx",
    )


def wrong_build(uses_avx512: bool, isa: str, flags: Set[str]) -> str | None:
    """Return what is wrong with it, and the way out; None if nothing is."""
    if isa == "avx2" and uses_avx512:
        return "uses AVX-512; name an environment whose build does not"
    if isa == "native" and WIDE in flags and not uses_avx512:
        return "uses no AVX-512, which this machine has; name an environment whose build does"
    return None
