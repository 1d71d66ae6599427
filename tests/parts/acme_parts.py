"""A tiny Acme checkpoint, its answer worked out by hand, and quire as a process of its own."""

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import torch
from safetensors.torch import save_file
from torch.nn import functional

from quire.testing.checkpoints import write_tokenizer

SIZES = {"vocab_size": 272, "width": 32, "heads": 4, "kv_heads": 2, "depth": 2}
MAX_POSITIONS = 256
CHAT_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}"
    "Write calls as [[call NAME {...}]].\n{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
)
START_TIMEOUT_S = 60


def write_acme_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint of AcmeForCausalLM with every parameter random."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["AcmeForCausalLM"], "max_positions": MAX_POSITIONS, **SIZES}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(acme_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, SIZES["vocab_size"])
    path = folder / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text()) | {"chat_template": CHAT_TEMPLATE}
    path.write_text(json.dumps(tokenizer))
    return folder


def acme_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return the tensors of the checkpoint, by name."""
    width, kv_width = SIZES["width"], SIZES["width"] * SIZES["kv_heads"] // SIZES["heads"]
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (SIZES["vocab_size"], width)}
    for layer in range(SIZES["depth"]):
        name = f"layers.{layer}"
        for part, rows in (("q", width), ("k", kv_width), ("v", kv_width)):
            shapes[f"{name}.{part}.weight"] = (rows, width)
            shapes[f"{name}.{part}.bias"] = (rows,)
        shapes[f"{name}.out.weight"] = (width, width)
        shapes[f"{name}.up.weight"] = (4 * width, width)
        shapes[f"{name}.down.weight"] = (width, 4 * width)
        shapes[f"{name}.norm.weight"] = shapes[f"{name}.norm.bias"] = (width,)
    shapes["norm.weight"] = shapes["norm.bias"] = (width,)
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, shape, generator) for name, shape in shapes.items()}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    values = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return values * 0.2 + 1.0
    if name.endswith("bias"):
        return values * 0.3
    # As a head, an embedding of size one finds its own token again, and the answer repeats.
    return values * ((0.5 if name == "embed.weight" else 2.0) * shape[-1] ** -0.5)


def greedy_tokens(weights: dict[str, torch.Tensor], prompt: Sequence[int], count: int) -> list[int]:
    """Return the likeliest continuation, computed without a cache and without quire."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(_logits(weights, torch.tensor(tokens)).argmax()))
    return tokens[len(prompt) :]


def _logits(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    x = weights["embed.weight"][tokens]  # [T, hidden]
    for layer in range(SIZES["depth"]):
        prefix = f"layers.{layer}."
        own = {n[len(prefix) :]: w for n, w in weights.items() if n.startswith(prefix)}
        normed = functional.layer_norm(x, x.shape[1:], own["norm.weight"], own["norm.bias"])
        hidden = functional.gelu(normed @ own["up.weight"].T) @ own["down.weight"].T
        x = x + _attention(own, normed) @ own["out.weight"].T + hidden
    x = functional.layer_norm(x, x.shape[1:], weights["norm.weight"], weights["norm.bias"])
    return x[-1] @ weights["embed.weight"].T


def _attention(own: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    head_dim = SIZES["width"] // SIZES["heads"]
    q, k, v = (
        (x @ own[f"{part}.weight"].T + own[f"{part}.bias"]).unflatten(1, (-1, head_dim))
        for part in "qkv"
    )
    angles = torch.outer(
        torch.arange(len(x), dtype=torch.float32),
        10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim),
    )
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    q, k = (
        torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        for first, second in (q.chunk(2, -1), k.chunk(2, -1))
    )
    repeats = SIZES["heads"] // SIZES["kv_heads"]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    q, k, v = (heads.transpose(0, 1) for heads in (q, k, v))
    out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(0, 1).flatten(1)


class Quire:
    """The command `quire`, with some folders of installed plugins beside it."""

    def __init__(self, *sites: Path) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        path = os.pathsep.join(map(str, sites))
        self.environment = clean | {
            "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        self.command = str(Path(sys.executable).parent / "quire")

    def run(self, *argv: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [self.command, *map(str, argv)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    @contextmanager
    def serve(self, log: Path, *argv: object) -> Iterator[httpx.Client]:
        """Serve until the block ends; what the server says goes to `log`."""
        with log.open("w") as errors:
            server = subprocess.Popen(
                [self.command, "serve", *map(str, argv), "--port", "0"],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            with httpx.Client(base_url=_url_of(server, log), timeout=60) as client:
                yield client
        finally:
            server.terminate()
            server.wait(30)
            server.stdout.close()


def _url_of(server: subprocess.Popen[str], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if select.select([server.stdout], [], [], 0.2)[0]:
            line = server.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found:
                return found[0]
            if not line:
                break
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
