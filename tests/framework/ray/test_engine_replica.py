"""A replica, without Ray: its responses and reports, and its end when the engine dies or hangs."""

import os
import subprocess
import sys
from pathlib import Path

from processes import path_with

PARTS = Path(__file__).parents[2] / "parts"
SCRIPT = """
import asyncio, json, os, signal, sys

import msgspec
from processes import workers_of

from quire.errors import EngineDeadError
from quire.server.asgi_call import HTTPCall, ResponseStart
from quire.ray.engine_replica import EngineReplica
from quire.ray.serve_routing import ReplicaFacts, ReplicaLoad

BODY = {"model": "demo", "prompt": "The fox " * 40, "max_tokens": 4, "temperature": 0}

ADMIN = ("/reset_prefix_cache",)

def call(path, body):
    headers = [(b"content-type", b"application/json")]
    data, is_admin = json.dumps(body).encode(), path in ADMIN
    return msgspec.msgpack.encode(
        HTTPCall("POST", path, b"", headers, data, "req-1", "acme", 0.0, None, is_admin))

async def status_of(items):
    found = [item async for item in items]
    return msgspec.msgpack.decode(found[0], type=ResponseStart).status

async def load_of(replica):
    return msgspec.convert(await replica.record_routing_stats(), ReplicaLoad)

async def refuses(made):
    try:
        await made
    except EngineDeadError as error:
        return str(error)

async def main():
    replica = EngineReplica.__new__(EngineReplica)
    events = sys.argv[1] == "dies"
    await replica.__init__({"model": "demo", "device": "cpu", "threads": 1, "kv_events": events})
    await replica.check_health()
    facts = msgspec.convert(await replica.record_replica_metadata(), ReplicaFacts)
    print(facts.block_size, facts.num_blocks > 100, facts.reports_changes == events)
    print(await status_of(replica.respond(call("/v1/completions", BODY), prompt=b"")))
    print(await status_of(replica.respond(call("/v1/completions", {}))))
    while events and not (await load_of(replica)).changes[-1].stored:
        await asyncio.sleep(0.05)
    reset = await replica.reset_prefix_cache(call("/reset_prefix_cache", {}))
    print(msgspec.msgpack.decode(reset[0], type=ResponseStart).status)
    load = await load_of(replica)
    print(load.num_requests, load.num_resets, bool(load.changes) == events)
    leaving = replica.respond(call("/v1/completions", BODY | {"max_tokens": 800, "stream": True}))
    await anext(leaving)
    load = await load_of(replica)
    print(load.num_requests, load.num_resets, bool(load.changes) == events)
    await leaving.aclose()
    print((await replica.record_routing_stats())["num_requests"])
    (engine,) = workers_of(os.getpid())
    if sys.argv[1] == "hangs":
        os.kill(engine, signal.SIGSTOP)
        replica._frontend._stall_limit_s = 0.2
        asking = asyncio.create_task(status_of(replica.respond(call("/v1/completions", BODY))))
        await asyncio.sleep(0.6)
        print(await refuses(replica.check_health()), flush=True)
    os.kill(engine, signal.SIGKILL)
    while not (death := await refuses(replica.check_health())):
        await asyncio.sleep(0.05)
    print("SIGKILL" in death)
    refused = await refuses(status_of(replica.respond(call("/v1/completions", BODY))))
    print(refused == death, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def run(how):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONPATH": path_with(PARTS)},
    )


SERVED = [
    "16 True True",
    "200",
    "400",
    "200",
    "0 1 True",
    "1 1 True",
    "0",
]


def test_a_replica_serves_until_its_engine_dies_and_ends_with_it():
    done = run("dies")
    assert done.stdout.splitlines() == [*SERVED, "True", "True"], done.stderr
    assert done.returncode == 1
    assert "the engine died, so this replica ends" in done.stderr


def test_an_engine_that_hangs_is_unhealthy():
    done = run("hangs")
    assert done.stdout.splitlines()[len(SERVED)] == "a step of the engine hangs", done.stderr
