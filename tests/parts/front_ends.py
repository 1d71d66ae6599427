"""The front ends of a server that runs in processes of its own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from processes import command_of, workers_of
from served_process import ServedProcess

ENTRY = "quire.cli.api_servers.entry"
ENGINE = "quire.launch.engine_process.entry"


def front_ends(served: ServedProcess) -> list[int]:
    """Return the process ids of the front ends."""
    return [pid for pid in workers_of(served.process.pid) if ENTRY in command_of(pid)]


def engine_of(served: ServedProcess) -> int:
    """Return the process id of the engine."""
    (pid,) = [pid for pid in workers_of(served.process.pid) if ENGINE in command_of(pid)]
    return pid


def num_sockets(pid: int) -> int:
    """Return the number of sockets that a process has open."""
    num = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            num += os.readlink(link).startswith("socket:")
        except FileNotFoundError:
            continue
    return num


def text_of(served: ServedProcess, max_tokens: int = 20, **fields: Any) -> str:
    """Return a greedy completion over a connection of its own, or the code of its error."""
    body = {"prompt": "Once", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    url = f"{served.client.base_url}/v1/completions"
    found = httpx.post(url, json=body | fields, timeout=120).json()
    if "error" in found:
        return str(found["error"]["code"])
    return str(found["choices"][0]["text"])


def pieces_of(served: ServedProcess, max_tokens: int = 300) -> Iterator[str]:
    """Yield the pieces of a greedy stream over a connection of its own, or an error's code."""
    body = {"prompt": "Once", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    url = f"{served.client.base_url}/v1/completions"
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    yield str(event["error"]["code"])
                else:
                    yield str(event["choices"][0]["text"])


def metric(served: ServedProcess, name: str) -> float:
    """Return the sum of a metric's samples."""
    url = f"{served.client.base_url}/metrics"
    lines = httpx.get(url, timeout=60).text.splitlines()
    found = [line for line in lines if line.partition("{")[0].partition(" ")[0] == name]
    return sum(float(line.rpartition(" ")[2]) for line in found)
