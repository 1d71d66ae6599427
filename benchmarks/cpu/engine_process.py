"""An engine in its own process group, controlled by JSON lines, stopped while others compute.

While another engine computes, all processes of this one are stopped by a signal, so that polling
and spinning threads take no time from it.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

PEERS = Path(__file__).parent / "peers"
CHILD = PEERS / "engine_child.py"
AVX2_ONLY = PEERS / "avx2_only"
END_S = 20.0
DROPPED = re.compile(
    r"(OMP|GOMP|KMP|MKL|DNNL|ONEDNN|ATEN|OPENBLAS|QUIRE|VLLM|OV|OPENVINO|GGML|TORCH|TORCHINDUCTOR"
    r"|MALLOC)_.*|LD_PRELOAD|PYTHONPATH"
)  # each affects speed
SEVERAL_NAMES = re.compile(r"(?:/[\w.+@-]+){2,}")
LIMITS = {  # variables that limit the instruction sets of libraries
    "native": {},
    "avx2": {
        "QUIRE_CPU_ISA": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    },
}
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}


class EngineFailedError(Exception):
    """An engine ended, failed, or exceeded its time; the message ends with its own."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration of one engine.

    Attributes:
        engine: Name in `engine_child.ENGINES`.
        name: Short description, for the report.
        options: Options of its constructor.
        environment: Environment variables of its process in addition to ours.
        weight_bytes: Bytes of one parameter in its memory.
        keeps_weights: True if it computes with the checkpoint's weights, and not with fewer bits.
    """

    engine: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    weight_bytes: float = 4.0
    keeps_weights: bool = True

    @property
    def label(self) -> str:
        """Name in the report."""
        return f"{self.engine} {self.name}".strip()

    def as_dict(self) -> dict[str, Any]:
        """Return the description for the report, without paths of this machine."""
        return {
            "engine": self.engine,
            "name": self.name,
            "options": _without_paths(self.options),
            "environment": _without_paths(self.environment),
        }


class EngineProcess:
    """One engine that runs or is stopped.

    Args:
        configuration: Configuration of the engine.
        python: Interpreter of the environment that has it.
        isa: A key of `LIMITS`.
    """

    def __init__(self, configuration: Configuration, python: str, isa: str) -> None:
        self.configuration = configuration
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it ends with the process
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [python, str(CHILD), configuration.engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(configuration, isa),
            start_new_session=True,
        )
        self._guard = (
            subprocess.Popen(  # its input is closed when this process ends, also by a signal
                ["sh", "-c", f"read -r _; kill -s KILL -- -{self._process.pid}"],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        )

    def load(self, folder: Path, limit_s: float) -> dict[str, Any]:
        """Build the engine from a checkpoint; returns the seconds, by part and of the process.

        Raises:
            EngineFailedError: It could not be built.
        """
        options = dict(self.configuration.options)
        reply = self._ask({"do": "load", "folder": str(folder), "options": options}, limit_s)
        return reply | {"process_s": time.monotonic() - self._started}

    def run(
        self, prompts: Sequence[Sequence[int]], output_len: int, repeats: int, limit_s: float
    ) -> tuple[float, list[list[int]]]:
        """Generate; returns the seconds of one repetition and the completions.

        Raises:
            EngineFailedError: It failed.
        """
        message = {"prompts": prompts, "output_len": output_len, "repeats": repeats}
        reply = self._ask({"do": "run", **message}, limit_s)
        return reply["seconds"], reply["token_ids"]

    def pause(self) -> None:
        """Stop all its processes."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue all its processes."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def libraries(self, pattern: str) -> list[str]:
        """Return the names of matching libraries that any of its processes has loaded."""
        found = set()
        for pid in _group(self._process.pid):
            try:
                lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            except OSError:  # it has just ended
                continue
            found |= {Path(line.split()[-1]).name for line in lines if "/" in line}
        return sorted(name for name in found if re.search(pattern, name))

    @property
    def lives(self) -> bool:
        """True if any of its processes still runs."""
        return bool(_group(self._process.pid))

    def close(self) -> None:
        """End all its processes, killing them if necessary; may be called twice."""
        if self._errors.closed:
            return
        self._guard.kill()  # before the group's id can be used again
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        if self._process.poll() is None:
            self.resume()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it has ended without reading everything
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # then it is killed below, with its children
            self._process.wait(END_S)
        if _group(self._process.pid):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _ask(self, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        if self._process.stdin is None:
            raise RuntimeError("the engine has no pipes")
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("it has ended") from None
        reply: dict[str, Any] = json.loads(self._line(limit_s))
        if "error" in reply:
            raise self._failed(reply["error"])
        return reply

    def _line(self, limit_s: float) -> bytes:
        """Read to the end of a line; the child writes nothing before the next message."""
        if self._process.stdout is None:
            raise RuntimeError("the engine has no pipes")
        line, end = b"", time.monotonic() + limit_s
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                raise self._failed(f"it did not reply within {limit_s:.0f} s")
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            if not piece:
                raise self._failed("it has ended")
            line += piece
        return line

    def _failed(self, what: str) -> EngineFailedError:
        self._errors.seek(0)
        errors = self._errors.read().strip().splitlines()
        print("\n".join(errors[-15:]), file=sys.stderr, flush=True)
        last = f" ({errors[-1][:300]})" if errors and errors[-1] not in what else ""
        return EngineFailedError(without_paths(f"{self.configuration.label}: {what}{last}"))


def environment(configuration: Configuration, isa: str) -> dict[str, str]:
    """Return all variables of the engine's process."""
    found = clean_environment() | QUIET | LIMITS[isa] | dict(configuration.environment)
    if isa == "avx2" and configuration.engine == "vllm":
        found["PYTHONPATH"] = str(AVX2_ONLY)
    return found


def clean_environment() -> dict[str, str]:
    """Return our variables without those that would change an engine's settings."""
    return {name: text for name, text in os.environ.items() if not DROPPED.fullmatch(name)}


def dropped_variables() -> dict[str, str]:
    """Return the variables that are not passed to the engines, for the report."""
    return {
        name: without_paths(text) for name, text in os.environ.items() if DROPPED.fullmatch(name)
    }


def without_paths(text: str) -> str:
    """Return a text for the report, with folders of this machine replaced."""
    return SEVERAL_NAMES.sub(lambda found: f"PATH/{Path(found[0]).name}", text)


def _without_paths(value: Any) -> Any:
    """Return the same for all texts inside a value."""
    if isinstance(value, str):
        return without_paths(value)
    if isinstance(value, Mapping):
        return {key: _without_paths(each) for key, each in value.items()}
    return [_without_paths(each) for each in value] if isinstance(value, list) else value


def _group(leader: int) -> list[int]:
    """Return the running processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[2]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found
