"""A server under ten times the load that it can serve: goodput, refusals, resets and latencies.

    python benchmarks/overload.py --write

The capacity is measured first with as many clients as requests can run, each of which sends its
next request when it has its response. Then requests are sent at ten times that rate, each over a
connection of its own and whatever becomes of those before, while a thread asks for `/livez`.

The goodput is also compared by the CPU time of the server, which other programs on the machine
influence less than the time that passes.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from quire.config import Settings
from quire.launch import start_engine
from quire.server.http_server import HTTPServer, bound_socket

RESULTS = Path(__file__).parent / "results"
NUM_CLIENTS = 64  # that measure the capacity
LAG_INTERVAL_S = 0.01
LIVEZ_INTERVAL_S = 0.05
PROMPT = "The server that stays up answers each request, or says when to come back. "


@dataclass(slots=True)
class Outcome:
    """What became of one request; status 0: its connection ended without a response."""

    began_s: float
    ended_s: float = 0.0
    status: int = 0
    has_retry_after: bool = False

    @property
    def seconds(self) -> float:
        """Time from the start of the connection to the end of the response."""
        return self.ended_s - self.began_s


@dataclass(slots=True)
class Load:
    """The outcomes of a phase, and when it began and ended."""

    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    cpu_s: float = 0.0  # of the server, until the last response

    @property
    def completed_per_cpu_second(self) -> float:
        """Number of completions by the CPU time of the server, that for refusals included."""
        return sum(o.status == 200 for o in self.outcomes) / self.cpu_s

    def completed_per_second(self, after_s: float = 0.0) -> float:
        """Return the rate of responses with a completion that ended within the phase."""
        began_s = self.began_s + after_s
        ended = [o.ended_s for o in self.outcomes if o.status == 200]
        return sum(began_s <= at <= self.ended_s for at in ended) / (self.ended_s - began_s)


class Call(asyncio.Protocol):
    """One request over a connection of its own."""

    def __init__(self, request: bytes, outcome: Outcome, done: asyncio.Future[None]) -> None:
        self._request = request
        self._outcome = outcome
        self._done = done
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read the response, and close the connection after it."""
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if len(body) < int(headers.get("content-length", 0)):
            return
        self._outcome.ended_s = time.monotonic()
        self._outcome.status = int(status.split()[1])
        self._outcome.has_retry_after = headers.get("retry-after", "").isdecimal()
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the call; without a response it failed."""
        del exc
        self._outcome.ended_s = self._outcome.ended_s or time.monotonic()
        if not self._done.done():
            self._done.set_result(None)


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the request that is sent to it."""

    port: int
    pid: int
    request: bytes

    @property
    def cpu_s(self) -> float:
        """CPU time of the server until now, with that of its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def call(self, load: Load) -> Outcome:
        """Send the request, and wait for its end."""
        loop, outcome = asyncio.get_running_loop(), Outcome(time.monotonic())
        load.outcomes.append(outcome)
        done = loop.create_future()
        try:
            await loop.create_connection(
                lambda: Call(self.request, outcome, done), "127.0.0.1", self.port
            )
            await done
        except OSError:
            outcome.ended_s = time.monotonic()
        return outcome


async def closed_loop(target: Target, seconds: float) -> Load:
    """Send requests from some clients, each of which waits for its responses."""
    load, cpu_s = Load(), target.cpu_s

    async def client() -> None:
        while time.monotonic() < load.began_s + seconds:
            await target.call(load)

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))
    load.ended_s = load.began_s + seconds
    load.cpu_s = target.cpu_s - cpu_s
    return load


async def open_loop(target: Target, seconds: float, per_second: float) -> Load:
    """Send requests at a rate, with random distances; then wait for the last response."""
    load, calls, chance = Load(), set[asyncio.Task[Outcome]](), random.Random(0)
    cpu_s = target.cpu_s
    next_s = load.began_s
    while next_s < load.began_s + seconds:
        await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        calls.add(asyncio.create_task(target.call(load)))
        next_s += chance.expovariate(per_second)
    load.ended_s = time.monotonic()
    await asyncio.gather(*calls)
    load.cpu_s = target.cpu_s - cpu_s
    return load


@contextmanager
def asking_livez(port: int) -> Iterator[list[float]]:
    """Ask for `/livez` from a thread, over new connections; yield the seconds that it takes."""
    seconds: list[float] = []
    is_done = threading.Event()
    request = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"

    def ask() -> None:
        while not is_done.wait(LIVEZ_INTERVAL_S):
            began_s = time.monotonic()
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(request)
                if not connection.recv(4096).startswith(b"HTTP/1.1 200"):
                    raise RuntimeError("/livez does not answer with 200")
            seconds.append(time.monotonic() - began_s)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield seconds
    finally:
        is_done.set()
        thread.join()


async def serve_observed(server: HTTPServer, bound: socket.socket) -> list[float]:
    """Serve until a signal; return by how many seconds the event loop was late, again and again."""
    lags_s: list[float] = []

    async def measure() -> None:
        while True:
            due_s = time.monotonic() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            lags_s.append(max(0.0, time.monotonic() - due_s))

    measuring = asyncio.create_task(measure())
    await server.serve([bound])
    measuring.cancel()
    return lags_s


def serve(options: Sequence[str]) -> None:
    """Serve until a signal; print the port first, and the lags of the event loop last."""
    given = dict(option.split("=", 1) for option in options)
    settings = Settings.from_options({"model": "demo", "port": 0} | json_values(given))
    with bound_socket(settings.server) as bound:
        frontend = start_engine(settings, is_serving=True).async_frontend()

        async def run_server() -> list[float]:
            tell = partial(print, flush=True)
            server = HTTPServer(
                frontend, settings.server, list, lambda url: tell(url.rsplit(":", 1)[1])
            )
            return await serve_observed(server, bound)

        print(json.dumps(asyncio.run(run_server())))


def json_values(given: dict[str, str]) -> dict[str, Any]:
    """Return options whose values are JSON, or else text."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def request_of(max_tokens: int, timeout_s: float | None) -> bytes:
    """Return the bytes of a request."""
    body = {"prompt": PROMPT * 2, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    if timeout_s is not None:
        body["timeout_s"] = timeout_s
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which a part of the values is; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


async def measure(port: int, pid: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the capacity, then the overload; return the figures without those of the server."""
    target = Target(port, pid, request_of(arguments.max_tokens, arguments.timeout_s))
    patient = Target(port, pid, request_of(arguments.max_tokens, None))
    await closed_loop(patient, 3.0)
    peak = await closed_loop(patient, arguments.seconds)
    capacity = peak.completed_per_second()
    print(json.dumps({"capacity_per_s": capacity}), file=sys.stderr)
    with asking_livez(port) as livez_s:
        load = await open_loop(target, arguments.seconds, arguments.factor * capacity)
    settled_s = min(arguments.timeout_s or 0.0, arguments.seconds / 2)
    goodput = load.completed_per_second(settled_s)
    statuses = Counter(outcome.status for outcome in load.outcomes)
    refused = [outcome for outcome in load.outcomes if outcome.status == 503]
    served_s = [outcome.seconds for outcome in load.outcomes if outcome.status == 200]
    return {
        "capacity_per_s": capacity,
        "sent_per_s": len(load.outcomes) / (load.ended_s - load.began_s),
        "goodput_per_s": goodput,
        "goodput_ratio": goodput / capacity,
        "goodput_ratio_by_cpu": load.completed_per_cpu_second / peak.completed_per_cpu_second,
        "load_average": os.getloadavg()[0],
        "statuses": {str(status): num for status, num in sorted(statuses.items())},
        "resets": statuses[0],
        "refused_with_retry_after": sum(o.has_retry_after for o in refused) / max(1, len(refused)),
        "served_p50_s": percentile(served_s, 0.5),
        "served_p99_s": percentile(served_s, 0.99),
        "refused_p50_ms": 1e3 * percentile([o.seconds for o in refused], 0.5),
        "refused_p99_ms": 1e3 * percentile([o.seconds for o in refused], 0.99),
        "livez_p50_ms": 1e3 * percentile(livez_s, 0.5),
        "livez_p99_ms": 1e3 * percentile(livez_s, 0.99),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start a server, measure, and stop it."""
    command = [sys.executable, __file__, "--serve", *arguments.options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            if server.stdout is None:
                raise RuntimeError("the server has no output")
            figures = asyncio.run(measure(int(server.stdout.readline()), server.pid, arguments))
        finally:
            server.send_signal(signal.SIGTERM)
        lags_s = json.loads(server.stdout.read().splitlines()[-1])
    lag_ms = {f"lag_{name}_ms": 1e3 * percentile(lags_s, part) for name, part in PARTS.items()}
    return figures | lag_ms


PARTS = {"p50": 0.5, "p99": 0.99}


def report(figures: dict[str, Any], arguments: argparse.Namespace) -> str:
    """Return the figures as a page."""
    rows = [
        ("capacity, requests/s", f"{figures['capacity_per_s']:.1f}"),
        ("sent, requests/s", f"{figures['sent_per_s']:.0f}"),
        ("goodput, requests/s", f"{figures['goodput_per_s']:.1f}"),
        ("goodput / capacity", f"{figures['goodput_ratio']:.2f}"),
        ("the same by CPU time of the server", f"{figures['goodput_ratio_by_cpu']:.2f}"),
        ("responses by status", ", ".join(f"{s}: {n}" for s, n in figures["statuses"].items())),
        ("connections without a response", str(figures["resets"])),
        ("503 with `Retry-After`", f"{figures['refused_with_retry_after']:.0%}"),
        ("completions, p50 / p99", _both(figures, "served_p50_s", "served_p99_s", "s")),
        ("refusals, p50 / p99", _both(figures, "refused_p50_ms", "refused_p99_ms", "ms")),
        ("`/livez`, p50 / p99", _both(figures, "livez_p50_ms", "livez_p99_ms", "ms")),
        ("event loop late by, p50 / p99", _both(figures, "lag_p50_ms", "lag_p99_ms", "ms")),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return (
        "# Overload\n\n"
        f"`python benchmarks/overload.py --write`, {time.strftime('%Y-%m-%d')}: the demo model on "
        "two cores, which also run the\nload generator, at a load average of "
        f"{figures['load_average']:.1f}. Completions of {arguments.max_tokens} tokens with "
        f"`timeout_s` {arguments.timeout_s:g} are sent at\n{arguments.factor:g} times the capacity "
        f"for {arguments.seconds:g} s, each over a connection of its own. The goodput counts from "
        "the moment\nat which the queue may be as long as the timeout allows.\n\n"
        f"| figure | value |\n|---|---|\n{table}\n"
    )


def _both(figures: dict[str, Any], low: str, high: str, unit: str) -> str:
    return f"{figures[low]:.2f} / {figures[high]:.2f} {unit}"


def main() -> None:
    """Measure, print the figures as JSON, and write the files if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--factor", type=float, default=10.0)
    parser.add_argument("--timeout-s", type=float, default=10.0)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--write", action="store_true", help="write results/overload.json and .md")
    parser.add_argument("options", nargs="*", help="options of the server, NAME=VALUE")
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.options)
        return
    figures = run(arguments)
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.write:
        (RESULTS / "overload.json").write_text(text + "\n")
        (RESULTS / "overload.md").write_text(report(figures, arguments))


if __name__ == "__main__":
    main()
