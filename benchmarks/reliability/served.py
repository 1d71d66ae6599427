"""`quire serve` as users start it, and clients that say exactly what they got."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from process_tree import tree

START_TIMEOUT_S = 180.0
END_TIMEOUT_S = 60.0


@dataclass
class Server:
    """A server that runs.

    Attributes:
        process: Its process.
        url: Its address.
        ready_s: Seconds from its start until it was ready.
        log: File of its log.
    """

    process: subprocess.Popen[str]
    url: str
    ready_s: float
    log: Path

    @property
    def pids(self) -> list[int]:
        """All living processes of the server."""
        return tree(self.process.pid)

    def post(self, path: str, body: Any, timeout_s: float = 120.0) -> httpx.Response:
        """Return the response to a JSON body, on a connection of its own."""
        return httpx.post(f"{self.url}{path}", json=body, timeout=timeout_s)

    def complete(self, prompt: Any = "Once", **fields: Any) -> httpx.Response:
        """Return the response of a greedy completion."""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
        return self.post("/v1/completions", body)

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of `/readyz`; 0 if nothing answers."""
        try:
            response = httpx.get(f"{self.url}/readyz", timeout=10)
        except httpx.HTTPError:
            return 0, {}
        return response.status_code, response.json()


@contextmanager
def serve(
    *flags: str, model: str = "demo", faults: str = "", environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """Serve a model until the block ends."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
    clean |= {"PYTHONUNBUFFERED": "1", "QUIRE_FAULTS": faults} | (environment or {})
    command = [sys.executable, "-m", "quire.cli", "serve", model, "--port", "0", *flags]
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        started = time.monotonic()
        process = subprocess.Popen(
            command, env=clean, stdout=subprocess.PIPE, stderr=log, text=True
        )
        try:
            url = _url_of(process, Path(log.name))
            server = Server(process, url, 0.0, Path(log.name))
            while server.readiness()[0] != 200:
                time.sleep(0.01)
            server.ready_s = time.monotonic() - started
            yield server
        finally:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Stop a server without waiting for its requests."""
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


def _url_of(process: subprocess.Popen[str], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.stdout is not None:
        if select.select([process.stdout], [], [], 0.05)[0]:
            line = process.stdout.readline()
            if found := re.search(r"http://\S+:\d+", line):
                return found[0]
            if not line:
                break
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")


@dataclass
class Streamed:
    """What a client got of one stream.

    Attributes:
        status: Status of the response; 0: none came.
        texts: Pieces of the completion.
        arrivals_s: Time of each piece, by `time.monotonic`.
        error: Code of the error that ended it, typed as clients raise it; None: there was none.
        is_done: Whether the stream ended with `[DONE]`.
        reset: Name of the exception of a connection that broke; None: it did not.
        ended_s: Time of the end.
    """

    status: int = 0
    texts: list[str] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    error: str | None = None
    is_done: bool = False
    reset: str | None = None
    ended_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether the whole completion has come."""
        return self.status == 200 and self.is_done and self.error is None and self.reset is None

    @property
    def has_typed_error(self) -> bool:
        """Whether the client knows from the response itself that it failed, and how."""
        return self.error is not None and self.reset is None


class Stream(threading.Thread):
    """One streamed completion, read in a thread."""

    def __init__(self, url: str, **fields: Any) -> None:
        super().__init__(daemon=True)
        self.got = Streamed()
        self._url = url
        defaults = {"prompt": "Once", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        self._body = {**defaults, **fields, "stream": True}

    def run(self) -> None:
        """Read the stream to its end."""
        try:
            self._read()
        except httpx.HTTPError as error:
            self.got.reset = type(error).__name__
        self.got.ended_s = time.monotonic()

    def _read(self) -> None:
        url = f"{self._url}/v1/completions"
        with httpx.stream("POST", url, json=self._body, timeout=300) as response:
            self.got.status = response.status_code
            if response.status_code != 200:
                error = json.loads(response.read())["error"]
                self.got.error = error["code"]
                return
            for line in response.iter_lines():
                self._take(line)

    def _take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.got.is_done = True
        elif line.startswith("data: {"):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                self.got.error = event["error"]["code"]
                return
            self.got.texts += [choice["text"] for choice in event["choices"]]
            self.got.arrivals_s.append(time.monotonic())


def start_streams(server: Server, number: int, **fields: Any) -> list[Stream]:
    """Start streams, and wait until each has its first piece."""
    streams = [Stream(server.url, **fields) for _ in range(number)]
    for stream in streams:
        stream.start()
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not all(s.got.arrivals_s for s in streams):
        time.sleep(0.002)
    return streams


def join(streams: Sequence[Stream], timeout_s: float = 180.0) -> list[Streamed]:
    """Wait for the end of streams, and return what they got."""
    deadline = time.monotonic() + timeout_s
    for stream in streams:
        stream.join(max(0.0, deadline - time.monotonic()))
    return [stream.got for stream in streams]
