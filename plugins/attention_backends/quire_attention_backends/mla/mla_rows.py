"""Rows of a step of latent attention, one per token, and the kernel that writes them to the cache.

Prompts and single tokens are treated alike. The request of a row and its number of visible tokens
are computed on the device, once per step, from the starts of the requests. So the launches depend
only on the number of tokens of a step.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: ANN001, ANN202, N803

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire.interfaces.attention import StepLayout

BLOCK_T = 64
BLOCK_R = 128
NO_TOKEN = tl.constexpr(2**31 - 1)


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The tokens of a step.

    Attributes:
        requests: `[T]` int32, row of the block table; 0 for padding.
        lengths: `[T]` int32, number of tokens that each token attends to, itself included; 0 for
            padding.
    """

    requests: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, step: StepLayout) -> TokenRows:
        """Compute the rows of a step in one kernel launch."""
        num_tokens = len(step.slot_mapping)
        requests, lengths = torch.empty(
            (2, num_tokens), dtype=torch.int32, device=step.seq_lens.device
        )
        if num_tokens:
            _find_rows[-(-num_tokens // BLOCK_T),](
                step.query_start,
                step.seq_lens,
                requests,
                lengths,
                len(step.seq_lens),
                num_tokens,
                BLOCK_R=BLOCK_R,
                BLOCK_T=BLOCK_T,
                num_warps=4,
                enable_fp_fusion=True,
            )
        return cls(requests, lengths)


def write_rows(
    latent: Tensor,  # [T, C], contiguous within a row
    k_rope: Tensor,  # [T, P], contiguous within a row
    kv_cache: Tensor,  # [B, S, C + P]
    slot_mapping: Tensor,  # [T] int64
) -> None:
    """Write the rows of a step to their slots."""
    num_tokens, latent_dim = latent.shape
    if not num_tokens:
        return
    _write_rows[num_tokens,](
        latent,
        k_rope,
        kv_cache,
        slot_mapping,
        latent.stride(0),
        k_rope.stride(0),
        kv_cache.stride(0),
        C=latent_dim,
        P=k_rope.shape[1],
        S=kv_cache.shape[1],
        num_warps=1,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["num_requests", "num_tokens"])
def _find_rows(
    query_start_ptr,
    seq_lens_ptr,
    requests_ptr,
    lengths_ptr,
    num_requests,
    num_tokens,
    BLOCK_R: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    """Find the request of each token by counting the requests that end before it."""
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    request = tl.zeros([BLOCK_T], tl.int32)
    for start in range(0, num_requests, BLOCK_R):
        row = start + tl.arange(0, BLOCK_R)
        end = tl.load(query_start_ptr + row + 1, mask=row < num_requests, other=NO_TOKEN)
        request += tl.sum((end[None, :] <= token[:, None]).to(tl.int32), 1)
    is_there = token < num_tokens
    is_real = is_there & (request < num_requests)
    end = tl.load(query_start_ptr + request + 1, mask=is_real, other=0)
    length = tl.load(seq_lens_ptr + request, mask=is_real, other=0)
    tl.store(requests_ptr + token, tl.where(is_real, request, 0), mask=is_there)
    tl.store(lengths_ptr + token, tl.where(is_real, length - (end - 1 - token), 0), mask=is_there)


@triton.jit
def _write_rows(
    latent_ptr,
    k_rope_ptr,
    cache_ptr,
    slots_ptr,
    latent_stride,
    k_rope_stride,
    page_stride,
    C: tl.constexpr,
    P: tl.constexpr,
    S: tl.constexpr,
):
    """Write the row of one token per program."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    row = cache_ptr + slot // S * page_stride + slot % S * (C + P)
    c, p = tl.arange(0, C), tl.arange(0, P)
    latent = tl.load(latent_ptr + token * latent_stride + c)
    k_rope = tl.load(k_rope_ptr + token * k_rope_stride + p)
    tl.store(row + c, latent.to(cache_ptr.dtype.element_ty))
    tl.store(row + C + p, k_rope.to(cache_ptr.dtype.element_ty))
