"""Types of the weights of GGUF files by parts of the model, for estimates of their size in memory.

Matrices that layers merge are counted together, since one that has several types is stored as none
of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

from quire.compose.gguf.header import GgufTensor
from quire.interfaces.weight_codes import ATTENTION, EMBEDDING, HEAD, MLP

TABLES = {"token_embd": EMBEDDING, "output": HEAD}
LAYERS, WEIGHT = "blk.", ".weight"
ATTENTION_NAMES = "attn_"  # starts of the names of its matrices
MERGED = (
    ("attn_q", "attn_k", "attn_v"),
    *((f"ffn_gate{end}", f"ffn_up{end}") for end in ("", "_exps", "_shexp")),
)


def weight_types(tensors: Mapping[str, GgufTensor]) -> dict[str, dict[str, int]]:
    """Return the number of elements of each part by the types of its matrices.

    Args:
        tensors: Tensors of the files by name.

    Returns:
        Counts by part ("attention", "mlp", "head" and "embedding") and by types: "Q4_K", or
        "Q4_K Q6_K" for matrices of these types that layers merge.
    """
    types: dict[tuple[str, str], set[str]] = {}
    counts = Counter[tuple[str, str]]()
    for name, tensor in tensors.items():
        if (key := _matrix(name)) is not None and len(tensor.shape) > 1:
            types.setdefault(key, set()).add(tensor.type.name)
            counts[key] += prod(tensor.shape)
    found: dict[str, Counter[str]] = {}
    for matrix, count in counts.items():
        found.setdefault(matrix[0], Counter())[" ".join(sorted(types[matrix]))] += count
    return {part: dict(sizes) for part, sizes in found.items()}


def _matrix(name: str) -> tuple[str, str] | None:
    """Return the part of the model that a tensor is in, and its matrix, merged ones as one."""
    stem = name.removesuffix(WEIGHT)
    if stem in TABLES:
        return TABLES[stem], stem
    if not name.startswith(LAYERS) or not name.endswith(WEIGHT):
        return None
    layer, _, own = stem.removeprefix(LAYERS).partition(".")
    merged = next((names[0] for names in MERGED if own in names), own)
    part = ATTENTION if own.startswith(ATTENTION_NAMES) else MLP
    return part, f"{layer}.{merged}"
