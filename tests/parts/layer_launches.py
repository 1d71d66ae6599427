"""Launches of the layers' kernels at the sizes of real models, to be compiled and not run."""

from itertools import pairwise

import torch

from quire.kernels.gated_activation import gelu_tanh_and_mul, silu_and_mul
from quire.kernels.lora_products import expand, output_tiles, shrink
from quire.kernels.rms_norm import add_rms_norm

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HIDDEN_SIZES = (1024, 2048, 2560, 4096, 5120, 8192, 16384)
TOKENS = 3


def ordinary() -> None:
    """What a model in bfloat16 of 8 billion parameters runs."""
    norms(4096, torch.bfloat16)
    activations(14336, torch.bfloat16)
    adapters(4096, [4096, 1024, 1024], 16, torch.bfloat16)


def everything() -> None:
    for dtype in DTYPES:
        for hidden_size in HIDDEN_SIZES:
            norms(hidden_size, dtype)
        norms(100, dtype)  # no multiple of anything
        for width in (3072, 14336, 100):
            activations(width, dtype)
        for rank in (8, 16, 64, 256):
            adapters(4096, [4096, 1024, 1024], rank, dtype)
        adapters(14336, [4096], 64, dtype)
        adapters(100, [33, 7], 5, dtype)


def norms(hidden_size: int, dtype: torch.dtype) -> None:
    x, residual = torch.zeros(2, TOKENS, hidden_size, dtype=dtype)
    for weight_dtype in {dtype, torch.float32}:
        weight = torch.zeros(hidden_size, dtype=weight_dtype)
        add_rms_norm(x, residual, weight, 1e-6)
        add_rms_norm(x, None, weight, 1e-6)


def activations(width: int, dtype: torch.dtype) -> None:
    gate_up = torch.zeros(TOKENS, 2 * width, dtype=dtype)
    silu_and_mul(gate_up)
    gelu_tanh_and_mul(gate_up)


def adapters(num_columns: int, outputs: list[int], rank: int, dtype: torch.dtype) -> None:
    num_slots, rows = 4, rank * len(outputs)
    ends = [sum(outputs[:count]) for count in range(len(outputs) + 1)]
    a = torch.empty(num_slots, rows, num_columns, dtype=dtype)
    b = torch.empty(num_slots, ends[-1], rank, dtype=dtype)
    spans = torch.zeros(num_slots, len(outputs) + 1, dtype=torch.int32)
    tiles = torch.tensor(output_tiles(list(pairwise(ends))), dtype=torch.int32)
    index = torch.zeros(TOKENS, dtype=torch.int64)
    hidden = shrink(torch.zeros(TOKENS, num_columns, dtype=dtype), a, spans, index)
    expand(torch.zeros(TOKENS, ends[-1], dtype=dtype), hidden, b, spans, tiles, index)
