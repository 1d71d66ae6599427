"""CPU time of the server for one refused request, with the connection that it came by.

    python benchmarks/refusal_cpu.py

A server of the demo model believes that its queue is full, or too long for the timeout that the
requests have, while its engine idles. So all of its CPU time is that of refusals. `kept` is for
requests over kept connections, the others have a connection each.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BURST = 32  # requests that are sent before the first of their responses is read
WARM_UP = 256  # requests

SERVER = """
import sys
from quire.config import Settings
from quire.frontend.dispatch.backlog import Backlog, QueueLimits
from quire.launch import start_engine
from quire.messages import EngineOutput, EngineOutputs, EngineRequest, EngineStats
from quire.process.garbage import settle
from quire.sampling_params import SamplingParams
from quire.server.http_server import serve

now_s = 0.0
limits = QueueLimits(1, 21 if sys.argv[1] == "full" else 100)
backlog = Backlog(limits, clock=lambda: now_s)
params = SamplingParams(max_tokens=50)
backlog.add(
    EngineRequest(request_id=f"q{i}", token_ids=[1] * 10, params=params, max_tokens=50, seed=0)
    for i in range(22)
)
for _ in range(50):
    now_s += 1.0
    output = EngineOutput(request_id="q0", token_ids=[7])
    backlog.take(EngineOutputs([output], EngineStats(num_running=1, num_waiting=21)), 1)
settings = Settings.from_options({"model": "demo", "port": 0, "engine_process": True})
frontend = start_engine(settings, is_serving=True).async_frontend()
frontend.dispatch.backlog = backlog
settle()
serve(frontend, settings.server, list, lambda url: print(url, flush=True))
"""


@contextmanager
def served(reason: str) -> Iterator[tuple[int, int]]:
    """Serve, with a queue that is "full" or "long"; yield the server's process id and its port."""
    command = [sys.executable, "-c", SERVER, reason]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            if server.stdout is None:
                raise RuntimeError("the server has no output")
            yield server.pid, int(server.stdout.readline().rsplit(":", 1)[1])
        finally:
            server.send_signal(signal.SIGTERM)


def request_of(*, is_kept: bool) -> bytes:
    """Return the bytes of a request that would take too long."""
    data = json.dumps({"prompt": "Once " * 30, "max_tokens": 50, "timeout_s": 10}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n" + ("" if is_kept else "Connection: close\r\n")
    return head.encode() + b"\r\n" + data


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process until now, with that of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def send(port: int, number: int) -> None:
    """Send requests, each over a connection of its own."""
    request = request_of(is_kept=False)
    for _ in range(number // BURST):
        connections = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(BURST)]
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            with connection:
                check(read_to_end(connection))


def send_over_kept(port: int, number: int) -> None:
    """Send requests over connections that stay."""
    request = request_of(is_kept=True)
    connections = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(BURST)]
    for _ in range(number // BURST):
        for connection in connections:
            connection.sendall(request)
        for connection in connections:
            check(connection.recv(65536))
    for connection in connections:
        connection.close()


def read_to_end(connection: socket.socket) -> bytes:
    """Return all that a connection sends."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def check(response: bytes) -> None:
    """Check that a response is a refusal.

    Raises:
        RuntimeError: It is none.
    """
    if not response.startswith(b"HTTP/1.1 503") or b"retry-after" not in response:
        raise RuntimeError(f"no refusal: {response!r}")


def main() -> None:
    """Measure, and print microseconds for a refusal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=4096)
    number = parser.parse_args().requests
    for reason in ("full", "long"):
        with served(reason) as (pid, port):
            for name, sender in (("new", send), ("kept", send_over_kept)):
                sender(port, WARM_UP)
                before_s, began_s = cpu_s(pid), time.monotonic()
                sender(port, number)
                figures = {
                    "queue": reason,
                    "connections": name,
                    "cpu_us": round(1e6 * (cpu_s(pid) - before_s) / number),
                    "wall_us": round(1e6 * (time.monotonic() - began_s) / number),
                }
                print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
