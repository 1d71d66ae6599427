"""A server that measures how late its event loop is, for `overload.py`.

It prints its port and its health port once it is ready, and at its end pairs of a time, by
`time.monotonic`, and the seconds by which the event loop was late then.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from quire.config import ServerSettings, Settings
from quire.launch import start_engine
from quire.process.garbage import settle
from quire.server.bound_sockets import bound_socket
from quire.server.http_server import HTTPServer

INTERVAL_S = 0.01
Lag = tuple[float, float]


def serve(options: Sequence[str]) -> None:
    """Serve the demo model until a signal.

    Args:
        options: Options of the server, NAME=VALUE.
    """
    given = dict(option.split("=", 1) for option in options)
    settings = Settings.from_options({"model": "demo", "port": 0} | json_values(given))
    lags: list[Lag] = []
    with bound_socket(settings.server) as bound, bound_socket(ServerSettings(port=0)) as health:
        frontend = start_engine(settings, is_serving=True).async_frontend()
        settle()  # as `quire serve` does
        ports = [bound.getsockname()[1], health.getsockname()[1]]
        on_ready = partial(_begin, lags, ports)
        HTTPServer(frontend, settings.server, list, on_ready).run([bound], health)
    print(json.dumps(lags))


def _begin(lags: list[Lag], ports: Sequence[int], url: str) -> None:
    """Measure from now on, and say that the server is ready; called in its event loop."""
    del url
    measuring = asyncio.create_task(measure(lags))
    measuring.add_done_callback(asyncio.Task.cancelled)  # which holds it until then
    print(json.dumps(ports), flush=True)


async def measure(lags: list[Lag]) -> None:
    """Add by how many seconds the event loop is late, until cancelled."""
    while True:
        due_s = time.monotonic() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        lags.append((due_s, max(0.0, time.monotonic() - due_s)))


def json_values(given: dict[str, str]) -> dict[str, Any]:
    """Return options whose values are JSON, or else text."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


if __name__ == "__main__":
    serve(sys.argv[1:])
