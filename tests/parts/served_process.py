"""`quire serve` as users start it, in a process of its own, with or without injected faults."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from processes import workers_of

START_TIMEOUT_S = 120.0  # on a machine where others compute
END_TIMEOUT_S = 30.0


@dataclass
class ServedProcess:
    """A server that runs.

    Attributes:
        process: Its process.
        client: Client of its address.
        log: File of its log.
    """

    process: subprocess.Popen[str]
    client: httpx.Client
    log: Path

    @property
    def engine_pid(self) -> int:
        """Process id of the engine, if it has a process of its own."""
        (pid,) = [pid for pid in workers_of(self.process.pid) if pid != self.process.pid]
        return pid

    def complete(self, prompt: str | list[int] = "Once", **fields: object) -> httpx.Response:
        """Return the response of a greedy completion of a few tokens."""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        return self.client.post("/v1/completions", json=body)

    def readiness(self) -> tuple[int, dict[str, object]]:
        """Return status and body of `/readyz`."""
        response = self.client.get("/readyz")
        return response.status_code, response.json()

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Wait for the exit, and return its status."""
        return self.process.wait(timeout_s)


@contextmanager
def served_process(
    log: Path, *argv: object, faults: str = "", model: object = "demo"
) -> Iterator[ServedProcess]:
    """Serve until the block ends.

    Args:
        log: File that gets the log.
        argv: Flags of `quire serve`.
        faults: Value of `QUIRE_FAULTS`.
        model: Model to serve.
    """
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    command = [sys.executable, "-m", "quire.cli", "serve", str(model), "--port", "0"]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*command, *map(str, argv)],
            env=clean | {"PYTHONUNBUFFERED": "1", "QUIRE_FAULTS": faults},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        with httpx.Client(base_url=_url_of(process, log), timeout=60) as client:
            yield ServedProcess(process, client, log)
    finally:
        _end(process)


def _url_of(process: subprocess.Popen[str], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.stdout is not None:
        if select.select([process.stdout], [], [], 0.2)[0]:
            line = process.stdout.readline()
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                return found[0]
            if not line:
                break
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


def _end(process: subprocess.Popen[str]) -> None:
    """End the server, and the engine with it: its watchdog kills what a killed server leaves."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_TIMEOUT_S)
    if process.stdout is not None:
        process.stdout.close()
