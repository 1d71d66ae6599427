"""R1, R14 and R15: random bodies, overload, and a soak under mixed load."""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from process_tree import memory_bytes, num_descriptors, num_threads
from row import Limits, Measured
from served import Server, serve

OVERLOAD_TIMEOUT_S = 600.0
OVERLOAD = Path(__file__).parents[1] / "overload.py"
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [300]},
}
FIELDS = (
    "prompt", "messages", "tools", "tool_choice", "n", "best_of", "temperature", "top_p", "seed",
    "stop", "stop_regex", "logprobs", "top_logprobs", "logit_bias", "response_format",
    "structured_outputs", "stream_options", "max_completion_tokens", "min_tokens", "priority",
    "cache_salt", "timeout_s", "model", "tokens", "echo", "user", "metadata", "temprature",
)  # fmt: skip
SCALARS = (
    None, True, 0, -1, 1.5, 1e308, 2**63, -(2**63), "", "a", "\x00", "\u202e", "(a+)+b", [], {},
    [[]], {"type": "json_object"}, {"role": "user", "content": "x"}, "é" * 50, 300, "auto",
)  # fmt: skip
NUM_CLIENTS = 8
PROMPTS = ("What is quire?", "Once upon a time", "The capital of France", "List three colours:")
WARM_UP_S = 15.0
WARM_UP_PART = 0.4  # of the soak, which its slope leaves out
SAMPLE_S = 0.5
MIB, HOUR_S = 2**20, 3600.0
SLOW_READ_S = 0.02
IDLE_S = 8.0  # idle connections are closed after 5


def fuzz(limits: Limits) -> Measured:
    """Send random bodies to every route that takes one, and count what is not answered well."""
    rng = random.Random(18)
    statuses: list[int] = []
    num_misshapen = 0
    with serve() as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for path, base in ROUTES.items():
            for _ in range(limits.num_fuzzed):
                content = _body(rng, base)
                response = client.post(
                    path, content=content, headers={"content-type": "application/json"}
                )
                statuses.append(response.status_code)
                num_misshapen += response.status_code >= 400 and not _is_error(response)
        is_ready = server.readiness()[0] == 200
    num_failed = sum(status >= 500 for status in statuses)
    num_fine = sum(status == 200 for status in statuses)
    text = (
        f"{num_failed} of {len(statuses):,} ({num_fine:,} were valid); {num_misshapen} errors of "
        f"another shape than OpenAI's; {'ready' if is_ready else 'not ready'} after it"
    )
    return Measured(text, num_failed == 0 and num_misshapen == 0 and is_ready)


def _body(rng: random.Random, base: dict[str, Any]) -> bytes:
    """Return a body with a few random fields; one in ten is no JSON."""
    body = dict(base)
    for name in rng.sample(FIELDS, rng.randint(0, 3)):
        body[name] = _value(rng, 2)
    content = json.dumps(body).encode()
    if rng.random() < 0.1:
        cut = rng.randrange(len(content))
        return content[:cut] + bytes([rng.randrange(256)]) + content[cut + 1 :]
    return content


def _value(rng: random.Random, depth: int) -> Any:
    if depth and rng.random() < 0.3:
        keys = rng.sample(("type", "json", "regex", "choice", "schema", "name", "function"), 2)
        return {key: _value(rng, depth - 1) for key in keys}
    if depth and rng.random() < 0.2:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return rng.choice(SCALARS)


def _is_error(response: httpx.Response) -> bool:
    try:
        return set(response.json()["error"]) >= {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        return False


def overload(limits: Limits) -> Measured:
    """Run the benchmark of overload, which has a page of its own."""
    del limits
    command = [sys.executable, str(OVERLOAD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=OVERLOAD_TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return judged(json.loads(done.stdout))


def judged(figures: Mapping[str, Any]) -> Measured:
    """Return the figures of an overload as a row."""
    goodput = max(figures["goodput_ratio"], figures["goodput_ratio_by_cpu"])
    text = (
        f"goodput {figures['goodput_ratio']:.0%} of the capacity "
        f"({figures['goodput_ratio_by_cpu']:.0%} by CPU time); event loop late by "
        f"{figures['lag_p99_ms']:.0f} ms, `/livez` {figures['livez_p99_ms']:.0f} ms, on the health "
        f"port {figures['livez_health_port_p99_ms']:.0f} ms, its client late by "
        f"{figures['probe_late_p99_ms']:.0f} ms (p99); CPU of a refusal "
        f"{figures['front_cpu_of_a_refusal_ms']:.2f} ms; "
        f"`Retry-After` in {figures['refused_with_retry_after']:.0%} of the refusals; "
        f"{figures['resets']} resets"
    )
    is_responsive = figures["lag_p99_ms"] <= 50 and figures["livez_p99_ms"] <= 100
    is_polite = figures["refused_with_retry_after"] == 1 and not figures["resets"]
    return Measured(text, goodput >= 0.9 and is_responsive and is_polite)


@dataclass
class Samples:
    """Resources of a server's processes over time."""

    times_s: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def take(self, server: Server, now_s: float) -> None:
        """Add a sample."""
        pids = server.pids
        self.times_s.append(now_s)
        self.memory.append(memory_bytes(pids))
        self.descriptors.append(num_descriptors(pids))
        self.threads.append(num_threads(pids))

    def slope(self, values: list[int]) -> float:
        """Return the least-squares slope per second, the warm-up left out."""
        first = int(len(values) * WARM_UP_PART)
        times, rest = self.times_s[first:], values[first:]
        mean_time, mean = sum(times) / len(times), sum(rest) / len(rest)
        spread = sum((time_s - mean_time) ** 2 for time_s in times)
        pairs = zip(times, rest, strict=True)
        return sum((time_s - mean_time) * (value - mean) for time_s, value in pairs) / spread


def soak(limits: Limits) -> Measured:
    """Run mixed load; compare resources while idle before and after, and greedy completions."""
    samples = Samples()
    with serve() as server:
        load = MixedLoad(server)
        load.run(WARM_UP_S)  # opens what is opened at its first use
        before = _idle_counts(server)
        load.run(limits.soak_s, samples)
        after = _idle_counts(server)
        num_wrong = load.num_wrong + load.num_changed()
    slope = samples.slope(samples.memory) * HOUR_S / MIB
    peak = max(samples.memory) / MIB
    text = (
        f"{limits.soak_s:.0f} s, {load.num_requests:,} requests: RSS slope {slope:+.1f} MiB/h "
        f"(peak {peak:.0f} MiB); descriptors {before[0]} when idle before, "
        f"{max(samples.descriptors)} at most, {after[0]} when idle after; threads {before[1]}, "
        f"{max(samples.threads)}, {after[1]}; "
        f"{num_wrong} greedy completions differed from those given alone"
    )
    is_flat = slope < 1 and after[0] <= before[0] and after[1] <= before[1]
    return Measured(text, is_flat and num_wrong == 0)


def _idle_counts(server: Server) -> tuple[int, int]:
    """Return the descriptors and the threads once idle connections are closed."""
    time.sleep(IDLE_S)
    pids = server.pids
    return num_descriptors(pids), num_threads(pids)


class MixedLoad:
    """Clients that send requests of random kinds, and check what they get.

    Attributes:
        num_requests: Number of requests sent in all runs.
        num_wrong: Number of them whose response was wrong.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._alone = {prompt: self._text(prompt) for prompt in PROMPTS}
        self.num_requests = 0
        self.num_wrong = 0

    def run(self, duration_s: float, samples: Samples | None = None) -> None:
        """Send requests for a time, and take samples of the server's resources meanwhile."""
        started = time.monotonic()
        is_done = threading.Event()
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            loads = [
                clients.submit(self._keep_sending, each, is_done) for each in range(NUM_CLIENTS)
            ]
            while (now_s := time.monotonic() - started) < duration_s:
                if samples is not None:
                    samples.take(self._server, now_s)
                time.sleep(SAMPLE_S)
            is_done.set()
        for load in loads:
            num_requests, num_wrong = load.result()
            self.num_requests += num_requests
            self.num_wrong += num_wrong

    def num_changed(self) -> int:
        """Return the number of prompts whose greedy completion is another than at the beginning."""
        return sum(self._text(prompt) != text for prompt, text in self._alone.items())

    def _keep_sending(self, number: int, is_done: threading.Event) -> tuple[int, int]:
        """Send requests until it is done; return how many, and how many went wrong."""
        kinds = (self._whole, self._abort, self._read_slowly, self._invalid, self._constrained)
        rng = random.Random(number)
        num_requests = num_wrong = 0
        while not is_done.is_set():
            [is_right] = rng.choices(kinds, (6, 3, 1, 2, 1))
            num_wrong += not is_right(rng)
            num_requests += 1
        return num_requests, num_wrong

    def _whole(self, rng: random.Random) -> bool:
        prompt = rng.choice(PROMPTS)
        return self._text(prompt) == self._alone[prompt]

    def _abort(self, rng: random.Random) -> bool:
        prompt = rng.choice(PROMPTS)
        text = "".join(_pieces(self._server, prompt, 300, rng.randint(0, 20), 0.0))
        expected = self._alone[prompt]
        return text[: len(expected)] == expected[: len(text)]

    def _read_slowly(self, rng: random.Random) -> bool:
        prompt = rng.choice(PROMPTS)
        pieces = _pieces(self._server, prompt, 32, 10**6, SLOW_READ_S)
        return "".join(pieces) == self._alone[prompt]

    def _invalid(self, rng: random.Random) -> bool:
        fields = rng.choice(({"n": 0}, {"temperature": "hot"}, {"stop": [""] * 99}, {"prompt": []}))
        body = {"prompt": "x", **fields}
        return self._server.post("/v1/completions", body).status_code == 400

    def _constrained(self, rng: random.Random) -> bool:
        outputs = {"regex": f"[a-z]{{{rng.randint(1, 9)}}}"}
        response = self._server.complete("x", max_tokens=32, structured_outputs=outputs)
        return response.status_code == 200

    def _text(self, prompt: str) -> str:
        response = self._server.complete(prompt, max_tokens=32)
        response.raise_for_status()
        return str(response.json()["choices"][0]["text"])


def _pieces(
    server: Server, prompt: str, max_tokens: int, num_events: int, pause_s: float
) -> Iterator[str]:
    """Yield pieces of a stream, and leave after some events."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: {") and num_events > 0:
                num_events -= 1
                time.sleep(pause_s)
                yield from (choice["text"] for choice in json.loads(line[6:])["choices"])
            elif num_events <= 0:
                return
