"""Launches of the experts' kernels at the sizes of real models, to be compiled and not run."""

import torch

from quire.kernels.clamped_gate import clamped_gate
from quire.kernels.expert_rows import combine_rows, gather_rows, group_rows
from quire.kernels.grouped_product import grouped_product

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def ordinary() -> None:
    """What a model in bfloat16 with 128 experts runs: decode steps, and long prompts."""
    experts(2048, 768, 128, 8, torch.bfloat16, (4, 400, 3000))


def everything() -> None:
    for dtype in DTYPES:
        experts(4096, 1024, 8, 2, dtype, (1, 100, 2000))
        experts(2880, 2880, 32, 4, dtype, (1, 2000), has_bias=True)
    experts(7168, 2048, 256, 8, torch.bfloat16, (1, 1000, 10000))


def odd() -> None:
    """Sizes that are no multiple of anything, so that elements are loaded one by one."""
    for dtype in DTYPES:
        experts(100, 33, 5, 2, dtype, (1, 300), has_bias=True)


def experts(
    hidden: int,
    width: int,
    num_experts: int,
    top_k: int,
    dtype: torch.dtype,
    num_tokens: tuple[int, ...],
    has_bias: bool = False,
) -> None:
    """Launch everything for several numbers of tokens; weights are small, as nothing reads them."""
    gate_up = torch.empty(1, dtype=dtype).expand(num_experts, 2 * width, hidden)
    bias = torch.empty(num_experts, 2 * width, dtype=dtype) if has_bias else None
    for count in num_tokens:
        x = torch.empty(1, dtype=dtype).expand(count, hidden)
        for weights in (None, torch.empty(count, top_k)):
            pairs, rows, ends = group_rows(
                torch.zeros(count, top_k, dtype=torch.int64), range(num_experts)
            )
            gathered = gather_rows(x, pairs, ends, weights)
            combine_rows(gathered, rows, weights)
        for is_invariant in (False, True):
            out = grouped_product(gathered, gate_up, bias, ends, batch_invariant=is_invariant)
        clamped_gate(out, 1.702, 7.0)
