"""CPU time of the server's front end: of a one-token request, and of each streamed token.

    python benchmarks/frontend_cpu.py                      # this checkout
    python benchmarks/frontend_cpu.py BEFORE [AFTER ...]   # checkouts in turn, by their folders
    python benchmarks/frontend_cpu.py --of-chat            # requests of other APIs against a chat's
    python benchmarks/frontend_cpu.py --running NAME=http://127.0.0.1:8000,PID .   # another server

`quire serve demo` runs with the engine in a process of its own; this process sends it requests over
kept connections. The front end is the server's process without the engine's: its user and system
time, from the kernel's account in nanoseconds, by request or by token. The checkouts take turns and
change places in every round, so that all meet the same load of the machine; a figure is the median
of the rounds, and the least one stands beside it, as other work only adds.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
WARM_UP = 200  # requests, or as many as a turn has
TURN = 160  # requests of a turn that is compared with others
ROUNDS = 5

START = "import sys; from quire.cli.main import main; sys.exit(main())"
OPTIONS = ["serve", "demo", "--port", "0", "--engine-process"]
URL = re.compile(r"http://([\d.]+):(\d+)")


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one measure.

    Attributes:
        name: Words for the table.
        path: Route.
        num_connections: Number of connections, each with one request at a time.
        num_requests: Number of requests of a round.
        num_tokens: Number of tokens of a completion.
        stream: Whether each token is an event.
    """

    name: str
    path: str
    num_connections: int
    num_requests: int
    num_tokens: int = 1
    stream: bool = False

    @property
    def divisor(self) -> int:
        """Number of requests, or of streamed tokens, of a round."""
        return self.num_requests * (self.num_tokens if self.stream else 1)

    @property
    def end(self) -> bytes:
        """What a whole stream has near its end."""
        if self.path.endswith("responses"):
            return b"event: response.incomplete"
        return b"event: message_stop" if self.path.endswith("messages") else b"[DONE]"

    @property
    def data(self) -> bytes:
        """The request's bytes."""
        body: dict[str, object] = {"temperature": 0.0, "ignore_eos": True, "stream": self.stream}
        if self.path.startswith("/api/"):
            messages = [{"role": "user", "content": "Hi"}]
            options = {"temperature": 0.0, "num_predict": self.num_tokens}
            body = {"messages": messages, "options": options, "stream": self.stream}
        elif self.path.endswith("responses"):
            body |= {"max_output_tokens": self.num_tokens, "input": "Hi"}
        elif self.path.endswith(("chat/completions", "messages")):
            messages = [{"role": "user", "content": "Hi"}]
            body |= {"max_tokens": self.num_tokens, "messages": messages}
        else:
            body |= {"max_tokens": self.num_tokens, "prompt": "Once upon a time"}
        text = json.dumps(body)
        head = f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()


LOADS = [
    Load("completion of one token, 1 connection", "/v1/completions", 1, 600),
    Load("completion of one token, 16 connections", "/v1/completions", 16, 1600),
    Load("chat of one token, 16 connections", "/v1/chat/completions", 16, 1600),
    Load("response of one token, 16 connections", "/v1/responses", 16, 1600),
    Load("message of one token, 16 connections", "/v1/messages", 16, 1600),
    Load("Ollama's chat of one token, 16 connections", "/api/chat", 16, 1600),
    Load("streamed token of a completion, 16 streams", "/v1/completions", 16, 64, 64, True),
    Load("streamed token of a chat, 16 streams", "/v1/chat/completions", 16, 64, 64, True),
    Load("streamed token of a response, 16 streams", "/v1/responses", 16, 64, 64, True),
    Load("streamed token of a message, 16 streams", "/v1/messages", 16, 64, 64, True),
    Load("GET /livez, 1 connection", "/livez", 1, 1000),
]


class RunningServer:
    """A server that somebody else starts and ends.

    Args:
        name: Name for the table.
        address: Host and port.
        pid: Process of its front end.
    """

    def __init__(self, name: str, address: tuple[str, int], pid: int) -> None:
        self.name = name
        self._address = address
        self._clock = (~pid << 3) | 2  # of the CPU time of a process, as clock_getcpuclockid(3)

    def measure(self, load: Load) -> float:
        """Return the front end's milliseconds of CPU for one request, or one token, of a load."""
        self._send(load, min(WARM_UP, load.num_requests))
        before = self._cpu_ns()
        self._send(load, load.num_requests)
        return (self._cpu_ns() - before) / 1e6 / load.divisor

    def stop(self) -> None:
        """Leave it as it is."""

    def _cpu_ns(self) -> int:
        """Return the CPU time of the process so far."""
        time.sleep(0.05)  # for what is left to do after the last byte
        return time.clock_gettime_ns(self._clock)

    def _send(self, load: Load, num_requests: int) -> None:
        """Send requests over several connections, and read all responses."""
        data = _get(load.path) if load.path == "/livez" else load.data
        waiting = selectors.DefaultSelector()
        for _ in range(load.num_connections):
            connection = socket.create_connection(self._address)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(data)
            waiting.register(connection, selectors.EVENT_READ, bytearray())
        num_sent = load.num_connections
        num_read = 0
        while num_read < num_requests:
            for key, _ in waiting.select():
                received: bytearray = key.data
                part = key.fileobj.recv(65536)  # type: ignore[union-attr]
                if not part:
                    raise RuntimeError(f"the server closed a connection: {bytes(received)!r}")
                received += part
                if not _is_whole(received, load.end, load.stream):
                    continue
                if not received.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(f"a request failed: {bytes(received)!r}")
                received.clear()
                num_read += 1
                if num_sent < num_requests:
                    num_sent += 1
                    key.fileobj.sendall(data)  # type: ignore[union-attr]
        for key in list(waiting.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        waiting.close()


class Server(RunningServer):
    """A server process of one checkout."""

    def __init__(self, root: Path) -> None:
        sources = [root / "framework", *sorted((root / "plugins").iterdir())]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *OPTIONS],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        super().__init__(root.name, self._ready(), self._process.pid)
        threading.Thread(target=self._drop_output, daemon=True).start()

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(60)

    def _ready(self) -> tuple[str, int]:
        """Return the address of the server, once it serves."""
        lines = []
        for line in self._process.stdout or ():
            lines.append(line)
            if (found := URL.search(line)) and _is_ready(found[1], int(found[2])):
                return found[1], int(found[2])
        raise RuntimeError("the server did not start:\n" + "".join(lines))

    def _drop_output(self) -> None:
        for _ in self._process.stdout or ():
            pass


def _is_ready(host: str, port: int) -> bool:
    """Wait until a server is ready; return False if nothing listens there."""
    for _ in range(600):
        connection = http.client.HTTPConnection(host, port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return True
        except ConnectionRefusedError:
            return False
        finally:
            connection.close()
        time.sleep(0.1)
    return False


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def _is_whole(received: bytes, end: bytes, is_stream: bool) -> bool:
    if is_stream:
        return received.endswith(b"0\r\n\r\n") and end in received
    head, found, body = bytes(received).partition(b"\r\n\r\n")
    if not found:
        return False
    length = head.lower().partition(b"content-length: ")[2].split(b"\r\n", 1)[0]
    return len(body) >= int(length)


def _running(text: str) -> RunningServer:
    """Return the server that an option names."""
    name, _, where = text.partition("=")
    url, _, pid = where.partition(",")
    found = URL.fullmatch(url)
    if found is None or not pid.isdecimal():
        raise SystemExit(f"--running takes NAME=http://127.0.0.1:PORT,PID, got {text!r}")
    return RunningServer(name, (found[1], int(found[2])), int(pid))


def print_shares_of_chat(server: RunningServer, num_turns: int) -> None:
    """Print what a request costs against a chat's in the same turn, which is short.

    Args:
        server: Server to measure.
        num_turns: Number of turns, in changing order.
    """
    loads = [replace(load, num_requests=TURN) for load in LOADS if load.num_connections > 1]
    loads = [load for load in loads if not load.stream]
    chat = next(load for load in loads if load.path == "/v1/chat/completions")
    shares: dict[str, list[float]] = {load.name: [] for load in loads}
    for turn in range(num_turns):
        times = {load: server.measure(load) for load in (loads if turn % 2 else loads[::-1])}
        for load, time_ms in times.items():
            shares[load.name].append(time_ms / times[chat])
    print(f"{server.name}: CPU of the front end, of a chat's in the same turn: median (quartiles)")
    for name, found in shares.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"| {name} | {middle:.3f} ({low:.3f} to {high:.3f}) |")


def main() -> None:
    """Measure the checkouts in turn, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("roots", nargs="*", type=Path, default=[HERE])
    parser.add_argument(
        "--running",
        action="append",
        default=[],
        metavar="NAME=URL,PID",
        help="a server of any kind that runs already, and the process of its front end",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--of-chat", action="store_true", help="requests of other APIs")
    arguments = parser.parse_args()
    servers: list[RunningServer] = [_running(each) for each in arguments.running]
    servers += [Server(root.resolve()) for root in arguments.roots]
    times: dict[tuple[str, int], list[float]] = {}
    try:
        if arguments.of_chat:
            for server in servers:
                print_shares_of_chat(server, num_turns=arguments.rounds * ROUNDS)
            return
        for number in range(arguments.rounds):
            order = range(len(servers)) if number % 2 == 0 else reversed(range(len(servers)))
            for index in order:
                for load in LOADS:
                    found = servers[index].measure(load)
                    times.setdefault((load.name, index), []).append(found)
    finally:
        for server in servers:
            server.stop()
    print("CPU of the front end, in ms: median (least)")
    print("| load |" + "".join(f" {server.name} |" for server in servers))
    print("|---|" + "---|" * len(servers))
    for load in LOADS:
        rounds = [times[load.name, index] for index in range(len(servers))]
        figures = [f" {statistics.median(each):.3f} ({min(each):.3f}) |" for each in rounds]
        print(f"| {load.name} |" + "".join(figures))


if __name__ == "__main__":
    main()
