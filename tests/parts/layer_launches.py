"""Launches of the layers' kernels at the sizes of real models, to be compiled and not run."""

from itertools import pairwise

import torch

from quire.kernels.activations import activate, activate_gate
from quire.kernels.group_norm import GroupNormLaunch
from quire.kernels.layer_norm import add_layer_norm
from quire.kernels.lora_products import expand, output_tiles, shrink
from quire.kernels.rms_norm import add_rms_norm

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
HIDDEN_SIZES = (1024, 2048, 2560, 4096, 5120, 8192, 16384)
TOKENS = 3


def ordinary() -> None:
    """What a model in bfloat16 of 8 billion parameters runs."""
    norms(4096, torch.bfloat16)
    activations(14336, torch.bfloat16)
    head_norms(32, 128, torch.bfloat16)
    adapters(4096, [4096, 1024, 1024], 16, torch.bfloat16)


def everything() -> None:
    for dtype in DTYPES:
        for hidden_size in HIDDEN_SIZES:
            norms(hidden_size, dtype)
        norms(100, dtype)  # no multiple of anything
        for width in (3072, 14336, 100):
            activations(width, dtype)
        other_activations(14336, dtype)
        for num_heads, head_dim in ((32, 128), (96, 80)):
            head_norms(num_heads, head_dim, dtype)
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
    add_layer_norm(x, residual, weight, weight, 1e-6)
    add_layer_norm(x, None, None, None, 1e-6)


def activations(width: int, dtype: torch.dtype) -> None:
    gate_up = torch.zeros(TOKENS, 2 * width, dtype=dtype)
    activate_gate(gate_up, "silu")
    activate_gate(gate_up, "gelu_tanh")
    activate(gate_up, "xielu", (0.5, 0.5, 0.5, -1e-6))


def other_activations(width: int, dtype: torch.dtype) -> None:
    gate_up = torch.zeros(TOKENS, 2 * width, dtype=dtype)
    for name in ("gelu", "relu2", "quick_gelu"):
        activate_gate(gate_up, name)
    for name in ("gelu", "gelu_tanh", "relu"):
        activate(gate_up, name)


def head_norms(num_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    rows = torch.zeros(TOKENS, num_heads + 16, head_dim, dtype=dtype)
    weight = torch.zeros(num_heads + 8, head_dim, dtype=dtype)
    for options in ({}, {"is_centred": True}, {"num_first": num_heads}):
        launch = GroupNormLaunch(weight, 1e-6, **options)
        launch.in_place(rows[:, : num_heads + 8])
    GroupNormLaunch(None, 1e-6).in_place(rows[:, num_heads + 8 :])


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
