"""Attention backend `cuda`: decode steps in CUDA C++, all other steps by the Triton backend.

K and V are written by the Triton kernels in every step. Page layout, split plan and partial outputs
are those of the Triton backend, so a context written by one can be read by the other. A decode step
is the same three launches per layer: write, attend, combine. The priority is lower because the
kernels are not measured yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from quire.errors import RefusedError
from quire.interfaces.attention import AttentionLayerParams, AttentionShape, StepLayout
from quire_attention_backends.cuda.cuda_decode import (
    DecodeKernels,
    DecodeStep,
    DecodeVariant,
    DeviceKernels,
)
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.kv_codec import FLOAT8_UNIT
from quire_attention_backends.shared.kv_layout import Pages
from quire_attention_backends.shared.score_factors import kv_units, score_factors
from quire_attention_backends.shared.split_plan import SplitPlan, SplitSizes
from quire_attention_backends.triton.paged_backend import PagedBackend, StepMetadata
from quire_attention_backends.triton.triton_attention import TritonBackend

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

UNIT = 64  # tokens of a unit of work: four tiles of a block's four warps
VECTOR_BYTES = 16
FEW_BLOCKS = 2048  # up to this number, each head is combined by a block of its own


class CudaBackend(PagedBackend):
    """Attention by CUDA C++ for decode, and by the Triton backend for all other steps.

    Args:
        shape: Shape of the backend.
        kernels: Object that runs the kernels; None: kernels compiled for this GPU.

    Raises:
        PluginLoadError: The kernels could not be compiled or loaded.
    """

    name: ClassVar[str] = "cuda"

    def __init__(self, shape: AttentionShape, kernels: DecodeKernels | None = None) -> None:
        super().__init__(shape)
        self._variant = DecodeVariant.of(shape)
        self._kernels = kernels or DeviceKernels(self._variant, shape.device)
        self._fallback = TritonBackend(shape)

    @staticmethod
    def splits_of(shape: AttentionShape) -> SplitSizes:
        """Return the split sizes of a decode step."""
        return SplitSizes.of(shape, UNIT, programs_per_item=shape.num_kv_heads)

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return the bytes of the partial outputs, for decode steps and for other steps."""
        return super().workspace_bytes(shape) + TritonBackend.workspace_bytes(shape)

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as `[B, 2, K, S, D]`.

        Raises:
            RefusedError: The pages are not K and V of whole heads, or are not aligned to vectors of
                16 bytes.
        """
        pages = super().kv_view(raw, spec, num_blocks)
        if raw.data_ptr() % VECTOR_BYTES or pages.stride(0) * pages.itemsize % VECTOR_BYTES:
            raise RefusedError(
                f"{cls.name} needs an alignment of {VECTOR_BYTES} bytes, and the pages of "
                f"{spec.layer.name} have a stride of {pages.stride(0) * pages.itemsize} bytes and "
                f"{raw.data_ptr():#x} as start address"
            )
        return pages

    def attend(
        self, q: Tensor, pages: Pages, metadata: StepMetadata, layer: AttentionLayerParams
    ) -> Tensor:  # [T, H, D]
        """Return the attention of `q`; padding rows are undefined."""
        if metadata.step.max_query_len > 1:
            return self._fallback.attend(q, pages, metadata, layer)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not len(q):
            return out
        q = q if _is_in_vectors(q) else q.contiguous()
        plan = self._plan(metadata, AttentionBounds.of(layer))
        step, variant = self._decode_step(q, out, pages, metadata.step, plan, layer), self._variant
        head_groups = -(-step.group // variant.block_heads)
        num_blocks = len(plan.items) * step.num_kv_heads * head_groups
        self._kernels.launch("paged_decode", (num_blocks, 1), step)
        rows = max(step.num_requests, step.num_tokens)
        self._kernels.launch(
            "combine", (rows, -(-self.shape.num_heads // step.combined_heads)), step
        )
        return out

    def _decode_step(
        self,
        q: Tensor,
        out: Tensor,
        pages: Pages,
        step: StepLayout,
        plan: SplitPlan,
        layer: AttentionLayerParams,
    ) -> DecodeStep:
        shape, (k_unit, v_unit) = self.shape, kv_units(pages.kind, layer, FLOAT8_UNIT)
        q_factor, soft_cap = score_factors(layer, k_unit)
        num_requests, group = len(step.seq_lens), shape.num_heads // shape.num_kv_heads
        return DecodeStep(
            out=out.data_ptr(),
            q=q.data_ptr(),
            pages=pages.data.data_ptr(),
            block_table=step.block_table.data_ptr(),
            query_start=step.query_start.data_ptr(),
            seq_lens=step.seq_lens.data_ptr(),
            num_partitions=plan.count.data_ptr(),
            partitions=plan.items.data_ptr(),
            parts=plan.parts.data_ptr(),
            partial_out=self._scratch.acc.data_ptr(),
            partial_stats=self._scratch.stats.data_ptr(),
            sinks=None if layer.sinks is None else layer.sinks.data_ptr(),
            q_token_stride=q.stride(0),
            q_head_stride=q.stride(1),
            page_stride=pages.data.stride(0) * pages.data.itemsize,
            table_stride=step.block_table.stride(0),
            num_requests=num_requests,
            num_tokens=len(q),
            num_kv_heads=shape.num_kv_heads,
            group=group,
            page_shift=shape.block_size.bit_length() - 1,
            combined_heads=1 if num_requests * shape.num_heads <= FEW_BLOCKS else group,
            window=layer.sliding_window or 0,
            chunk=layer.attention_chunk or 0,
            q_factor=q_factor,
            soft_cap=soft_cap,
            v_factor=v_unit,
        )


def _is_in_vectors(q: Tensor) -> bool:
    """Return whether each head is contiguous and aligned to a vector."""
    starts = (q.data_ptr(), q.stride(0) * q.itemsize, q.stride(1) * q.itemsize)
    return q.stride(2) == 1 and not any(start % VECTOR_BYTES for start in starts)
