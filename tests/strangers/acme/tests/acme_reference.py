"""AcmeForCausalLM in plain torch: random weights, logits, greedy tokens. No quire."""

from collections.abc import Sequence

import torch
from torch.nn import functional

SIZES = {"vocab_size": 272, "width": 32, "heads": 4, "kv_heads": 2, "depth": 2}
MAX_POSITIONS = 256


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
    # With embeddings of size one as the head, the completion would only repeat one token.
    return values * ((0.5 if name == "embed.weight" else 2.0) * shape[-1] ** -0.5)


def greedy_tokens(weights: dict[str, torch.Tensor], prompt: Sequence[int], count: int) -> list[int]:
    """Return the most likely continuation, computed without a cache and without quire."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(acme_logits(weights, torch.tensor(tokens))[-1].argmax()))
    return tokens[len(prompt) :]


def acme_logits(weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits `[T, V]` of every position."""
    x = weights["embed.weight"][tokens]  # [T, hidden]
    for layer in range(SIZES["depth"]):
        prefix = f"layers.{layer}."
        own = {n[len(prefix) :]: w for n, w in weights.items() if n.startswith(prefix)}
        normed = functional.layer_norm(x, x.shape[1:], own["norm.weight"], own["norm.bias"])
        hidden = functional.gelu(normed @ own["up.weight"].T) @ own["down.weight"].T
        x = x + _attention(own, normed) @ own["out.weight"].T + hidden
    x = functional.layer_norm(x, x.shape[1:], weights["norm.weight"], weights["norm.bias"])
    return x @ weights["embed.weight"].T


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
