"""The turn of the machine's memory among those of the engines: it is read as fast as possible.

A decode rate is compared with the bandwidth of the same round, so a machine whose memory is shared
with others affects both.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from comparisons import Bench
from configurations import QUIRE
from engine_process import EngineFailedError, environment

MEMORY = "read bandwidth"  # its label among those of the engines
SCRIPT = Path(__file__).with_name("machine_rates.py")
LIMIT_S = 120.0


def read_memory(bench: Bench) -> dict[str, float]:
    """Return the bytes that all cores together read from memory in a second.

    Raises:
        EngineFailedError: They could not be measured.
    """
    seconds = "0.01" if bench.is_quick else "1"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "rates.json"
        argv = [sys.executable, str(SCRIPT), "--seconds", seconds, "--json", str(path)]
        variables = environment(QUIRE, bench.isa)
        try:
            subprocess.run(argv, capture_output=True, env=variables, timeout=LIMIT_S, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise EngineFailedError(f"{MEMORY}: {type(error).__name__}") from error
        return {"bytes_per_s": json.loads(path.read_text(encoding="utf-8"))["bytes_per_s"]}
