"""Latency of `/livez`, on the main port and on a health port, under load.

    python benchmarks/livez.py           # while the engine computes one long prefill
    python benchmarks/livez.py --flood   # while 64 connections send small requests

A random model of 30 million parameters is served with a step budget that holds the whole prompt,
so a single step computes it; two threads request `/livez` repeatedly meanwhile, one on each port.
The flood comes from a process of its own.
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx

from quire.testing.checkpoints import write_checkpoint

PROMPT_TOKENS = 8000
FLOOD_CONNECTIONS = 64
SHAPE: dict[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 16384,
}


def main() -> None:
    """Serve, send requests, and print the latencies."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flood", action="store_true", help="many small requests")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of the flood")
    parser.add_argument("--flood-url", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood_url:
        flood(arguments.flood_url, arguments.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), "Qwen3ForCausalLM", **SHAPE)
        health_port = free_port()
        command = [sys.executable, "-m", "quire.cli", "serve", folder, "--port", "0"]
        command += ["--max-num-batched-tokens", str(PROMPT_TOKENS + 1)]
        command += ["--health-port", str(health_port)]
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            if server.stdout is None:
                raise RuntimeError("the server has no output")
            url = server.stdout.readline().split()[-1]
            urls = {"main": url, "health": f"http://127.0.0.1:{health_port}"}
            if arguments.flood:
                found = measure(urls, lambda: run_flood(url, arguments.seconds))
            else:
                found = measure(urls, lambda: prefill(url, folder))
            print(json.dumps(found, indent=2))
        finally:
            server.terminate()
            server.wait(60)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def measure(urls: Mapping[str, str], work: Callable[[], None]) -> dict[str, Any]:
    """Do some work with the server, and request `/livez` on each port as often as possible."""
    latencies: dict[str, list[float]] = {name: [] for name in urls}
    is_done = threading.Event()
    asking = [
        threading.Thread(target=ask_livez, args=(url, latencies[name], is_done))
        for name, url in urls.items()
    ]
    for thread in asking:
        thread.start()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    is_done.set()
    for thread in asking:
        thread.join()
    return {"work_s": seconds} | {name: figures(found) for name, found in latencies.items()}


def figures(latencies: list[float]) -> dict[str, float]:
    """Return the number of requests, and quantiles of their milliseconds."""
    latencies.sort()
    return {
        "asked": len(latencies),
        "ms_median": statistics.median(latencies) * 1e3,
        "ms_p99": latencies[int(len(latencies) * 0.99)] * 1e3,
        "ms_max": latencies[-1] * 1e3,
    }


def prefill(url: str, model: str) -> None:
    """Complete one long prompt."""
    body = {"model": model, "prompt": [5] * PROMPT_TOKENS, "max_tokens": 1}
    httpx.post(f"{url}/v1/completions", json=body, timeout=600).raise_for_status()


def run_flood(url: str, seconds: float) -> None:
    """Send many small requests, from another process."""
    command = [sys.executable, __file__, "--flood-url", url, "--seconds", str(seconds)]
    subprocess.run(command, check=True)


def flood(url: str, seconds: float) -> None:
    """Send small requests over `FLOOD_CONNECTIONS` connections until the time is over."""
    deadline = time.monotonic() + seconds
    body = {"prompt": [5, 6, 7], "max_tokens": 1}

    def send() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while time.monotonic() < deadline:
                client.post("/v1/completions", json=body)

    threads = [threading.Thread(target=send) for _ in range(FLOOD_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask_livez(url: str, latencies: list[float], is_done: threading.Event) -> None:
    """Request `/livez` until the prompt is complete."""
    with httpx.Client(base_url=url, timeout=60) as client:
        while not is_done.is_set():
            started = time.perf_counter()
            client.get("/livez").raise_for_status()
            latencies.append(time.perf_counter() - started)
            time.sleep(0.005)


if __name__ == "__main__":
    main()
