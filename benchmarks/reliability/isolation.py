"""R19 and R20: hostile grammars beside other streams, and plugins that fail."""

import statistics
import tempfile
import threading
from itertools import pairwise
from pathlib import Path

import httpx
from row import Limits, Measured
from served import Server, join, serve, start_streams

from quire.cli.bench.serving.percentiles import percentile

PARTS = (
    "--samplers", "default", "faults", "--attention-backend", "faults",
    "--scheduling-policy", "faults",
)  # fmt: skip
POINTS = (  # those of a KV store are left out: after its first failure it is not called again
    "request_received", "request_finished", "sampler", "attention.prepare", "attention.forward",
    "policy.order", "policy.admits", "policy.began", "policy.ended", "grammar.check",
    "grammar.compile", "grammar.accept", "grammar.mask",
)  # fmt: skip
FAULTS = (
    *(f"{point}:{fault}" for point in POINTS for fault in ("raise", "exhaust")),
    "grammar.compile:crash", "grammar.mask:crash", "grammar.mask:corrupt", "sampler:corrupt",
    "attention.forward:corrupt", "policy.order:corrupt",
)  # fmt: skip
HOSTILE = (
    "(a|aa)+$" * 20,
    "((a{1,50}){1,50}){1,50}",
    "(x+x+)+y" * 10,
    "[a-z]{0,5000}" * 8,
)
NUM_STREAMS = 8


def plugin_faults(limits: Limits) -> Measured:
    """Inject each fault of plugins into a running server; the next request must be served."""
    del limits
    with tempfile.TemporaryDirectory() as folder:
        files = {fault: Path(folder, fault.replace(":", ".")) for fault in FAULTS}
        rules = ",".join(f"{fault}@{file}" for fault, file in files.items())
        with serve(*PARTS, faults=rules) as server:
            text = _text(server)
            bad = [fault for fault, file in files.items() if not _survives(server, file, text)]
    num = len(FAULTS)
    listed = f": {', '.join(bad)}" if bad else ""
    return Measured(f"{num - len(bad)} of {num} faults{listed}", not bad)


def _text(server: Server) -> str:
    response = server.complete(list(range(5, 60)))
    return str(response.json()["choices"][0]["text"]) if response.status_code == 200 else ""


def _survives(server: Server, file: Path, text: str) -> bool:
    """Return whether the server is ready and right after a fault was switched on for a while."""
    choice = {"choice": ["red", file.name], "backend": "faults"}
    file.touch()
    failed = [server.complete(), server.complete(structured_outputs=choice)]
    file.unlink()
    codes = {response.status_code for response in failed}
    is_typed = all(r.status_code == 200 or "code" in r.json().get("error", {}) for r in failed)
    is_right = _text(server) == text and server.readiness()[0] == 200
    return is_typed and is_right and codes <= {200, 400, 500}


def hostile_grammars(limits: Limits) -> Measured:
    """Compare the inter-token latency of streams alone with that beside hostile grammars."""
    del limits
    with serve() as server:
        alone = _itl_p99_s(server)
        is_done = threading.Event()
        others = [
            threading.Thread(target=_keep_compiling, args=(server, regex, is_done))
            for regex in HOSTILE
        ]
        for other in others:
            other.start()
        beside = _itl_p99_s(server)
        is_done.set()
        for other in others:
            other.join(120)
    inflation = beside / alone - 1
    text = (
        f"{inflation:+.0%}: p99 {alone * 1e3:.1f} ms alone, {beside * 1e3:.1f} ms beside "
        f"{len(HOSTILE)} regexes that compile at any time, {NUM_STREAMS} streams"
    )
    return Measured(text, inflation <= 0.1)


def _itl_p99_s(server: Server) -> float:
    """Return the median over three rounds of the p99 of the time between two tokens."""
    rounds = []
    for _ in range(3):
        got = join(start_streams(server, NUM_STREAMS, max_tokens=400))
        gaps = [b - a for each in got for a, b in pairwise(each.arrivals_s)]
        rounds.append(percentile(sorted(gaps), 99))
    return statistics.median(rounds)


def _keep_compiling(server: Server, regex: str, is_done: threading.Event) -> None:
    number = 0
    while not is_done.is_set():
        number += 1
        constraint = {"regex": f"{regex}{number}"}
        try:
            server.complete(max_tokens=1, structured_outputs=constraint)
        except httpx.HTTPError:
            continue
