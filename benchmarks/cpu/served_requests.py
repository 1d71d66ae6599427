"""Throughput and waits of many clients with requests of mixed lengths, in one engine.

    PYTHON served_requests.py quire|openvino FOLDER 1 8 32 64 96

Each client sends a request, waits for its last token, and sends the next one of an endless list,
the same for every number of clients; every eight requests in a row have the same eight lengths.
All begin at once, so the first requests are in the same phase. When as many have ended as can run
at once, the tokens of three windows of equal length are counted. The output is a line of JSON for
each number of clients. 64 requests run at once, so some of 96 clients wait.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from serving_engines import ENGINES, MAX_NUM_SEQS, ServingEngine

LENGTHS = ((16, 48), (32, 16), (48, 64), (80, 32), (120, 56), (160, 24), (208, 64), (256, 40))
NUM_WINDOWS = 3
WARM_UP_S = 0.5
FIRST_TOKEN_ID = 3
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SAMPLED_EVERY_S = 0.2


@dataclass(slots=True)
class SentRequest:
    """Time at which a request was sent, and times of its tokens."""

    sent: float
    num_out: int
    times: list[float] = field(default_factory=list)  # of each message
    tokens: list[int] = field(default_factory=list)  # in each message


async def main() -> None:
    """Measure each number of clients with the same engine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("folder")
    parser.add_argument("clients", type=int, nargs="+")
    parser.add_argument("--window", type=float, default=8.0, help="seconds of each of three")
    parser.add_argument("--shortened", type=int, default=1, help="divide every length by this")
    arguments = parser.parse_args()
    engine = ENGINES[arguments.engine](arguments.folder)
    await measure(
        engine, 1, WARM_UP_S, arguments.shortened
    )  # everything that the first use creates exists now
    for num_clients in arguments.clients:
        found = await measure(engine, num_clients, arguments.window, arguments.shortened)
        print(json.dumps(found), flush=True)
    await engine.shutdown()


async def measure(
    engine: ServingEngine, num_clients: int, window_s: float, shortened: int
) -> dict[str, Any]:
    """Run some clients until the windows are over; returns the figures."""
    requests: list[SentRequest] = []
    wanted = enumerate(lengths(shortened))

    async def client() -> None:
        for index, (num_in, num_out) in wanted:
            requests.append(SentRequest(time.perf_counter(), num_out))
            await send(engine, prompt(index, num_in), requests[-1])

    clients = [asyncio.create_task(client()) for _ in range(num_clients)]
    try:
        await _until_ended(requests, min(num_clients, MAX_NUM_SEQS), clients)
        started = time.perf_counter()
        resident = await _resident_bytes(started + NUM_WINDOWS * window_s)
        _raise_of(clients)
    finally:
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    starts = [started + index * window_s for index in range(NUM_WINDOWS)]
    samples = [_tokens_between(requests, start, start + window_s) / window_s for start in starts]
    return {
        "clients": num_clients,
        "seconds": NUM_WINDOWS * window_s,
        "out_tok_s": spread(samples) | {"samples": samples},
        **_waits(requests, started, started + NUM_WINDOWS * window_s),
        "resident_bytes": resident,
    }


async def send(engine: ServingEngine, token_ids: list[int], request: SentRequest) -> None:
    """Send one request, and record the times of its tokens.

    Raises:
        RuntimeError: The number of tokens is wrong.
    """
    async with aclosing(engine.generate(token_ids, request.num_out)) as messages:
        async for num_tokens in messages:
            request.times.append(time.perf_counter())
            request.tokens.append(num_tokens)
    if sum(request.tokens) != request.num_out:
        raise RuntimeError(
            f"a completion has {sum(request.tokens)} tokens; max_tokens is {request.num_out}"
        )


def lengths(shortened: int = 1) -> Iterator[tuple[int, int]]:
    """Yield lengths of prompts and completions for ever, each eight a permutation of `LENGTHS`."""
    rng = random.Random(0)
    while True:
        for num_in, num_out in rng.sample(LENGTHS, len(LENGTHS)):
            yield max(2, num_in // shortened), max(2, num_out // shortened)


def prompt(index: int, length: int) -> list[int]:
    """Return a prompt that no other request has."""
    rng = random.Random(index)
    return [rng.randrange(FIRST_TOKEN_ID, 500) for _ in range(length)]


def spread(samples: list[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {"least": min(samples), "median": statistics.median(samples), "most": max(samples)}


async def _until_ended(
    requests: list[SentRequest], wanted: int, clients: list[asyncio.Task[None]]
) -> None:
    """Wait until some number of requests have all tokens."""
    while sum(sum(each.tokens) == each.num_out for each in requests) < wanted:
        _raise_of(clients)
        await asyncio.sleep(0.01)


def _raise_of(clients: list[asyncio.Task[None]]) -> None:
    for each in clients:
        if each.done():
            each.result()


async def _resident_bytes(end: float) -> dict[str, float]:
    """Return the resident memory of this process and its descendants, sampled until `end`."""
    samples = []
    while (now := time.perf_counter()) < end:
        samples.append(float(sum(map(_resident, _family()))))
        await asyncio.sleep(max(0.0, min(SAMPLED_EVERY_S, end - now)))
    return spread(samples)


def _family() -> Iterator[int]:
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        yield pid
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):  # it has just ended
                waiting += map(int, path.read_text().split())


def _resident(pid: int) -> int:
    try:
        return PAGE_BYTES * int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:  # it has just ended
        return 0


def _tokens_between(requests: list[SentRequest], start: float, end: float) -> int:
    return sum(
        count
        for each in requests
        for moment, count in zip(each.times, each.tokens, strict=True)
        if start <= moment < end
    )


def _waits(requests: list[SentRequest], start: float, end: float) -> dict[str, Any]:
    """Return the waits of requests within this time, including those that its end cuts off."""
    firsts: list[float] = []
    between: list[float] = []
    longest = 0.0
    for each in requests:
        if each.sent > end:
            continue
        came = [moment for moment in each.times if moment <= end]
        is_done = sum(each.tokens[: len(came)]) == each.num_out
        moments = [each.sent, *came, *([] if is_done else [end])]
        waits = [(after - before, after) for before, after in pairwise(moments)]
        longest = max([longest, *(wait for wait, after in waits if after >= start)])
        firsts += [wait for wait, after in waits[:1] if after >= start]
        between += [wait for wait, after in waits[1 : len(came)] if after >= start]
    return {
        "requests": len(firsts),
        "first_token_s": spread(firsts) if firsts else None,
        "token_s": spread(between) if between else None,
        "longest_wait_s": longest,
    }


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
