"""Files of quire that one warm, non-streaming chat completion runs through.

    python benchmarks/request_files.py [MODEL] [--json]

It serves a model in this process over HTTP, sends the same request a few times, and then counts the
source files in which a Python function is called, in every thread, from the first byte to the last.
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

BODY = {
    "messages": [{"role": "user", "content": "What is quire?"}],
    "max_tokens": 16,
    "temperature": 0,
}
NUM_WARM = 3
ROOT = Path(__file__).parents[1]


class CalledFiles:
    """Counts calls by file while it is switched on; installed before any thread starts."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: Counter[str] = Counter()

    def install(self) -> None:
        """Profile this thread and all that start later."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        del argument
        if self.is_on and event == "call":
            self.calls[frame.f_code.co_filename] += 1

    def ours(self) -> dict[str, int]:
        """Return the number of calls of each file of this repository."""
        found = {
            str(Path(name).relative_to(ROOT)): count
            for name, count in self.calls.items()
            if name.startswith(str(ROOT)) and "/.venv/" not in name
        }
        return {name: found[name] for name in sorted(found) if not name.startswith("benchmarks/")}


def measure(model: str) -> dict[str, int]:
    """Return the number of calls by file for one request."""
    called = CalledFiles()
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
            time.sleep(0.5)  # what the last request leaves behind is over
            called.is_on = True
            answer = client.post("/v1/chat/completions", json=BODY)
            called.is_on = False
            answer.raise_for_status()
    finally:
        server.stop()
        thread.join()
    return called.ours()


def _run(server: Any) -> None:
    import asyncio

    from quire.server.http_server import listening_socket

    asyncio.run(server.serve([listening_socket(server._settings)]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    calls = measure(arguments.model)
    if arguments.json:
        print(json.dumps({"num_files": len(calls), "calls": calls}, indent=2))
        return
    for name, count in calls.items():
        print(f"{count:6}  {name}")
    print(f"{len(calls)} files")


if __name__ == "__main__":
    main()
