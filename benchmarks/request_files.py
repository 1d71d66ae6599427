"""Files of quire that one warm, non-streaming chat completion runs through.

    python benchmarks/request_files.py [MODEL] [--functions] [--json]

It serves a model in this process over HTTP, sends the same request a few times, and then counts the
source files in which a Python function is called, in every thread, from the first byte until the
server has no request in flight.
A file of this repository counts once, however many of its functions run: functions, generators,
coroutines and module bodies written in it. C functions, code generated at run time (such as
the `__init__` of a dataclass) and other processes do not count. The figure is the number of files
that each of several requests runs through. Those that only some of them run through belong to what
happens now and then, such as health checks; the number of all files is printed as well.
"""

import argparse
import json
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

Calls = dict[str, dict[str, int]]  # file -> function -> number of calls

BODY = {
    "messages": [{"role": "user", "content": "What is quire?"}],
    "max_tokens": 16,
    "temperature": 0,
}
NUM_WARM, NUM_MEASURED = 3, 3
IDLE_S = 30
ROOT = Path(__file__).parents[1]


class CalledFunctions:
    """Counts calls of functions while it is switched on; installed before any thread starts."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: Counter[tuple[str, str]] = Counter()

    def install(self) -> None:
        """Profile this thread and all that start later."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if self.is_on and event == "call":
            self.calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

    def ours(self) -> Calls:
        """Return the number of calls of each function, by file of this repository."""
        found: Calls = {}
        for (name, function), count in sorted(self.calls.items()):
            if name.startswith(f"{ROOT}/") and "/.venv/" not in name:
                found.setdefault(str(Path(name).relative_to(ROOT)), {})[function] = count
        return {name: calls for name, calls in found.items() if not name.startswith("benchmarks/")}


def measure(model: str) -> list[Calls]:
    """Return the calls of each of several requests."""
    called = CalledFunctions()
    called.install()
    from quire.config import ServerSettings, Settings
    from quire.launch import start_engine
    from quire.server.http_server import HTTPServer

    engine = start_engine(Settings.from_options({"model": model}), is_serving=True)
    listening = threading.Event()
    address: list[str] = []
    server = HTTPServer(
        engine.async_frontend(),
        ServerSettings(port=0),
        list,
        lambda url: (address.append(url), listening.set()),
    )
    thread = threading.Thread(target=lambda: _run(server))
    thread.start()
    if not listening.wait(120):
        raise RuntimeError("the server does not listen after 120 seconds")
    try:
        with httpx.Client(base_url=address[0], timeout=120) as client:
            for _ in range(NUM_WARM):
                client.post("/v1/chat/completions", json=BODY).raise_for_status()
            return [_one_request(client, server, called) for _ in range(NUM_MEASURED)]
    finally:
        server.stop()
        thread.join()


def _one_request(client: httpx.Client, server: Any, called: CalledFunctions) -> Calls:
    """Return the calls of one request."""
    _wait_until_idle(server)
    called.calls.clear()
    called.is_on = True
    response = client.post("/v1/chat/completions", json=BODY)
    _wait_until_idle(server)  # the client has the last byte before the server's functions return
    called.is_on = False
    response.raise_for_status()
    return called.ours()


def _wait_until_idle(server: Any) -> None:
    end = time.monotonic() + IDLE_S
    while server._lifecycle.num_in_flight:
        if time.monotonic() > end:
            raise RuntimeError(f"a request is in flight {IDLE_S} s after its response")
        time.sleep(0.001)


def _run(server: Any) -> None:
    import asyncio

    from quire.server.http_server import listening_socket

    asyncio.run(server.serve([listening_socket(server._settings)]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument(
        "--functions", action="store_true", help="print the called functions of each file"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    measured = measure(arguments.model)
    files = set.intersection(*map(set, measured))
    others = sorted(set.union(*map(set, measured)) - files)
    functions = {name: calls for name, calls in measured[-1].items() if name in files}
    totals = {name: sum(calls.values()) for name, calls in functions.items()}
    if arguments.json:
        calls = functions if arguments.functions else totals
        print(json.dumps({"num_files": len(files), "others": others, "calls": calls}, indent=2))
        return
    for name, total in totals.items():
        print(f"{total:6}  {name}")
        if arguments.functions:
            for function, count in functions[name].items():
                print(f"{count:14}  {function}")
    for name in others:
        print(f"        {name} (not in every request)")
    print(f"{len(files)} files in every request, {len(files) + len(others)} in any")


if __name__ == "__main__":
    main()
