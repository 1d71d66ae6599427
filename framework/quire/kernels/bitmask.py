"""Masking of logits by a bitmask with one bit per token; the bitmask lies on the device."""

# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def,untyped-decorator,misc"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048  # tokens per program: 64 words
NUM_WARPS = 4


def mask_logits(
    logits: Tensor,  # [N, V] float32, in place
    rows: Tensor,  # [M] int64
    words: Tensor,  # [M, at least ceil(V / 32)] int32
) -> None:
    """Set the logits of row `rows[i]` to -inf where the bit in `words[i]` is 0."""
    num_masks, vocab_size = len(rows), logits.shape[1]
    _mask_kernel[num_masks, -(-vocab_size // BLOCK)](
        logits,
        logits.stride(0),
        vocab_size,
        rows,
        words,
        words.stride(0),
        BLOCK=BLOCK,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )


@triton.jit
def _mask_kernel(
    logits_ptr,  # [N, V]
    row_stride,
    vocab_size,
    rows_ptr,  # [M]
    words_ptr,  # [M, num_words]
    words_stride,
    BLOCK: tl.constexpr,
):
    mask = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + mask)
    token_ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_token = token_ids < vocab_size
    words = tl.load(words_ptr + mask * words_stride + token_ids // 32, is_token, other=-1)
    is_masked = ((words >> (token_ids % 32)) & 1) == 0
    tl.store(logits_ptr + row * row_stride + token_ids, float("-inf"), is_token & is_masked)
