"""R10 to R13: disconnects, deaths, draining and hangs."""

import os
import signal
import statistics
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import httpx
from process_tree import child_of_module, is_alive, wait_until
from row import Limits, Measured
from served import Server, Stream, end, join, serve, start_streams

from quire.cli.bench.serving.percentiles import percentile
from quire.testing.checkpoints import write_checkpoint

ENGINE = "quire.launch.engine_process"
NUM_DISCONNECTS = 30
NUM_STREAMS = 16
GRACE_S = 20.0
LONG = 900  # tokens of a stream that is to run when something happens
LONG_PROMPT = 24_000


def disconnects(limits: Limits) -> Measured:
    """Disconnect the only request that can run; the next one starts once its KV is free."""
    del limits
    flags = ("--max-num-seqs", "1", "--executor", "faults")
    with serve(*flags, faults="step.execute:delay:10ms") as server:
        waits = [_wait_behind_disconnect(server) for _ in range(NUM_DISCONNECTS)]
        step = _step_s(server)
    p99 = percentile(sorted(waits), 99)
    text = (
        f"p50 {statistics.median(waits) * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms over "
        f"{NUM_DISCONNECTS} disconnects, until a waiting request has its first token; a step takes "
        f"{step * 1e3:.1f} ms"
    )
    return Measured(text, p99 <= 2 * step + 0.1)


def _wait_behind_disconnect(server: Server) -> float:
    """Return the seconds from a disconnect to the first token of the request behind it."""
    body = {"prompt": "Once", "max_tokens": LONG, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        first = next(lines)
        behind = Stream(server.url, max_tokens=1, prompt="x")
        behind.start()
        time.sleep(0.1)
        if behind.got.arrivals_s:
            rest = [line for line in lines if line]
            raise RuntimeError(
                f"the request behind did not wait: the first got {response.status_code}, {first}, "
                f"{len(rest)} more events, the last of them {rest[-3:]}"
            )
    left_s = time.monotonic()
    join([behind])
    return behind.got.arrivals_s[0] - left_s


def _step_s(server: Server) -> float:
    """Return the median time between two tokens of a stream."""
    (stream,) = start_streams(server, 1)
    (got,) = join([stream])
    times = got.arrivals_s
    return statistics.median(b - a for a, b in pairwise(times))


def deaths(limits: Limits) -> Measured:
    """Kill the engine's process under load and while idle; look at clients and orphans."""
    del limits
    errors_s, num_typed, num_clients, num_orphans, statuses = [], 0, 0, 0, []
    for has_load in (True, False):
        with serve("--engine-process") as server:
            streams = start_streams(server, NUM_STREAMS, max_tokens=LONG) if has_load else []
            pids = server.pids
            killed_s = time.monotonic()
            os.kill(child_of_module(server.process.pid, ENGINE), signal.SIGKILL)
            got = join(streams, 20)
            num_clients += len(got)
            num_typed += sum(each.has_typed_error for each in got)
            errors_s += [each.ended_s - killed_s for each in got]
            statuses.append(server.process.wait(20))
            num_orphans += _orphans(pids)
    with serve("--engine-process") as server:
        pids = server.pids
        server.process.kill()
        num_orphans += _orphans(pids)
    text = (
        f"{num_typed} of {num_clients} clients got a typed error, the last after "
        f"{max(errors_s):.2f} s; exit status {statuses}; {num_orphans} orphans 5 s after the "
        "engine or the server was killed"
    )
    is_met = num_typed == num_clients and max(errors_s) <= 2 and not num_orphans
    return Measured(text, is_met and statuses == [1, 1])


def _orphans(pids: list[int]) -> int:
    """Return how many processes live 5 seconds later; they are ended."""
    wait_until(lambda: not any(map(is_alive, pids)), 5.0)
    left = [pid for pid in pids if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return len(left)


def draining(limits: Limits) -> Measured:
    """Send SIGTERM with streams in flight, and more requests while the server drains."""
    del limits
    with serve("--shutdown-timeout-s", str(GRACE_S)) as server:
        streams = start_streams(server, NUM_STREAMS, max_tokens=400)
        sent_s = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        late, num_resets = _ask_while_draining(server, streams)
        status = server.process.wait(GRACE_S + 30)
        exit_s = time.monotonic() - sent_s
        got = join(streams)
    num_complete = sum(each.is_complete for each in got)
    num_refused = sum(each == 503 for each in late)
    text = (
        f"{num_complete} of {NUM_STREAMS} streams completed; exit status {status} after "
        f"{exit_s:.1f} s (grace {GRACE_S:.0f} s); {num_refused} of {len(late)} later requests got "
        f"503; {num_resets} connections were reset before the streams had ended"
    )
    is_met = num_complete == NUM_STREAMS and exit_s <= GRACE_S + 2 and not num_resets
    return Measured(text, is_met and num_refused == len(late) > 0)


def _ask_while_draining(server: Server, streams: list[Stream]) -> tuple[list[int], int]:
    """Send requests until the streams end; return their statuses, and the number of resets."""
    statuses, num_resets = [], 0
    wait_until(lambda: server.readiness()[0] != 200, 5)
    while any(stream.is_alive() for stream in streams):
        try:
            statuses.append(server.complete().status_code)
        except httpx.HTTPError:
            num_resets += any(stream.is_alive() for stream in streams)
        time.sleep(0.05)
    return statuses, num_resets


def hangs(limits: Limits) -> Measured:
    """Let a step hang and time `/readyz`; then compute a long prompt, and count false alarms."""
    del limits
    flags = ("--executor", "faults", "--engine-process", "--stall-limit-s", "8")
    with serve(*flags, faults="step.execute:hang@20:600s") as server:
        (stream,) = start_streams(server, 1, max_tokens=LONG)
        took_s = wait_until(lambda: server.readiness()[0] == 503, 90)
        _, body = server.readiness()
        end(server.process)
        join([stream], 20)
    num_alarms, num_polls, prefill_s = _long_prefill()
    found = "not found in 90 s" if took_s is None else f"503 ({body.get('status')}) {took_s:.1f} s"
    text = (
        f"{found} after the hang, with --stall-limit-s 8; {num_alarms} alarms in {num_polls} polls "
        f"during a prompt of {LONG_PROMPT:,} tokens, which took {prefill_s:.0f} s"
    )
    return Measured(text, took_s is not None and took_s <= 10 and num_alarms == 0)


def _long_prefill() -> tuple[int, int, float]:
    """Return the number of false alarms, of polls, and the seconds of a long prompt."""
    statuses: list[int] = []
    is_done = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"max_position_embeddings": LONG_PROMPT + 64, "vocab_size": 512}
        write_checkpoint(Path(folder), "Qwen3ForCausalLM", **sizes)
        with serve("--stall-limit-s", "8", "--max-body-bytes", "32MiB", model=folder) as server:

            def poll() -> None:
                while not is_done.is_set():
                    statuses.append(server.readiness()[0])
                    time.sleep(0.2)

            polling = threading.Thread(target=poll)
            polling.start()
            started = time.monotonic()
            response = server.complete([5] * LONG_PROMPT, max_tokens=1)
            seconds = time.monotonic() - started
            is_done.set()
            polling.join()
            response.raise_for_status()
    return sum(status != 200 for status in statuses), len(statuses), seconds
