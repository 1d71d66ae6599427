"""Clients of `overload.py`, in a process of their own: a closed loop, or a rate.

It gives way to the server, by its niceness, as both share a machine; and it measures how late its
own event loop is, because what it does late it also sees late.
"""

import argparse
import asyncio
import json
import os
import random
import time
from dataclasses import astuple, dataclass, field
from typing import cast

from overload_server import Lag, measure

NICENESS = 5
RAMP_S = 2.0  # until all clients of a closed loop have begun: about as long as a completion takes
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
    """The outcomes of a phase, and when it began and ended.

    Attributes:
        lags_s: Delays of the event loop of the clients.
        cpu_s: CPU time of the clients.
    """

    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    @classmethod
    def from_json(cls, text: str) -> "Load":
        """Return what another process printed."""
        began_s, ended_s, outcomes, lags_s, cpu_s = json.loads(text)
        return cls(began_s, ended_s, [Outcome(*each) for each in outcomes], lags_s, cpu_s)

    @property
    def num_completed(self) -> int:
        """Number of completions."""
        return sum(outcome.status == 200 for outcome in self.outcomes)

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


def request_of(max_tokens: int, timeout_s: float) -> bytes:
    """Return the bytes of a request."""
    body = {"prompt": PROMPT * 2, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    data = json.dumps(body | {"timeout_s": timeout_s}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data


async def call(port: int, request: bytes, load: Load) -> None:
    """Send a request, and wait for its end."""
    loop, outcome = asyncio.get_running_loop(), Outcome(time.monotonic())
    load.outcomes.append(outcome)
    done = loop.create_future()
    try:
        await loop.create_connection(lambda: Call(request, outcome, done), "127.0.0.1", port)
        await done
    except OSError:
        outcome.ended_s = time.monotonic()


async def closed_loop(port: int, request: bytes, seconds: float, num_clients: int) -> Load:
    """Send requests from some clients, each of which waits for its responses.

    They begin one after another, and the phase begins with the last: otherwise all would end
    together, and the rate would depend on whether the end of the phase is before or after that.
    """
    load = Load(began_s=time.monotonic() + RAMP_S, ended_s=time.monotonic() + RAMP_S + seconds)

    async def client(index: int) -> None:
        await asyncio.sleep(RAMP_S * index / num_clients)
        while time.monotonic() < load.ended_s:
            await call(port, request, load)

    await asyncio.gather(*map(client, range(num_clients)))
    return load


async def open_loop(port: int, request: bytes, seconds: float, per_second: float) -> Load:
    """Send requests at a rate, with random distances; then wait for the last response."""
    load, calls, chance = Load(), set[asyncio.Task[None]](), random.Random(0)
    next_s = load.began_s
    while next_s < load.began_s + seconds:
        await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        calls.add(asyncio.create_task(call(port, request, load)))
        next_s += chance.expovariate(per_second)
    load.ended_s = time.monotonic()
    await asyncio.gather(*calls)
    return load


async def send(arguments: argparse.Namespace) -> Load:
    """Send the requests of a phase."""
    lags: list[Lag] = []
    measuring = asyncio.create_task(measure(lags))
    request = request_of(arguments.max_tokens, arguments.timeout_s)
    cpu_s = time.process_time()
    if arguments.per_second:
        seconds, per_second = arguments.seconds, arguments.per_second
        load = await open_loop(arguments.port, request, seconds, per_second)
    else:
        load = await closed_loop(arguments.port, request, arguments.seconds, arguments.clients)
    load.cpu_s = time.process_time() - cpu_s
    load.lags_s = [lag_s for at_s, lag_s in lags if at_s <= load.ended_s]
    measuring.cancel()
    return load


def main() -> None:
    """Send requests, and print what became of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--clients", type=int, help="number of clients of a closed loop")
    parser.add_argument("--per-second", type=float, help="rate, instead of a closed loop")
    parser.add_argument("--max-tokens", type=int, required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    os.nice(NICENESS)
    load = asyncio.run(send(parser.parse_args()))
    outcomes = [astuple(outcome) for outcome in load.outcomes]
    print(json.dumps([load.began_s, load.ended_s, outcomes, load.lags_s, load.cpu_s]))


if __name__ == "__main__":
    main()
