"""Latency of `/livez` while the engine computes one long prefill.

    python benchmarks/livez.py

A random model of 30 million parameters is served with a step budget that holds the whole prompt,
so a single step computes it; a second thread requests `/livez` repeatedly meanwhile.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from quire.testing.checkpoints import write_checkpoint

PROMPT_TOKENS = 8000
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
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), "Qwen3ForCausalLM", **SHAPE)
        command = [sys.executable, "-m", "quire.cli", "serve", folder, "--port", "0"]
        command += ["--max-num-batched-tokens", str(PROMPT_TOKENS + 1)]
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            if server.stdout is None:
                raise RuntimeError("the server has no output")
            url = server.stdout.readline().split()[-1]
            print(json.dumps(measure(url, folder), indent=2))
        finally:
            server.terminate()
            server.wait(60)


def measure(url: str, model: str) -> dict[str, float]:
    """Complete one long prompt, and request `/livez` as often as possible meanwhile."""
    latencies: list[float] = []
    is_done = threading.Event()
    asking = threading.Thread(target=ask_livez, args=(url, latencies, is_done))
    asking.start()
    started = time.perf_counter()
    body = {"model": model, "prompt": [5] * PROMPT_TOKENS, "max_tokens": 1}
    httpx.post(f"{url}/v1/completions", json=body, timeout=600).raise_for_status()
    seconds = time.perf_counter() - started
    is_done.set()
    asking.join()
    latencies.sort()
    return {
        "prefill_s": seconds,
        "asked": len(latencies),
        "livez_ms_median": statistics.median(latencies) * 1e3,
        "livez_ms_p99": latencies[int(len(latencies) * 0.99)] * 1e3,
        "livez_ms_max": latencies[-1] * 1e3,
    }


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
