"""Attention backend `cuda`: decode steps in CUDA C++, all other steps by the Triton backend.

K and V are written by the Triton kernels in every step. Page layout, split plan and partial outputs
are those of the Triton backend, so a context written by one can be read by the other. A decode step
is the same three launches per layer: write, attend, combine. The priority is lower because the
kernels are not measured yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from quire.errors import RefusedError
from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    RotaryStep,
    StepLayout,
)
from quire_attention_backends.cuda.cuda_decode import (
    DecodeKernels,
    DecodeStep,
    DecodeVariant,
    DeviceKernels,
)
from quire_attention_backends.shared import kv_layout
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.kv_codec import FLOAT8_UNIT
from quire_attention_backends.shared.split_plan import SplitPlan, SplitSizes, plan_splits
from quire_attention_backends.triton import kv_write
from quire_attention_backends.triton.paged_launch import Scratch
from quire_attention_backends.triton.triton_attention import TritonBackend

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

NAME = "cuda"
LOG2_E = 1.4426950408889634
UNIT = 64  # tokens of a unit of work: four tiles of a block's four warps
VECTOR_BYTES = 16
FEW_BLOCKS = 2048  # up to this number, each head is combined by a block of its own


@dataclass(slots=True)
class StepMetadata:
    """Metadata of a step, shared by all layers.

    Attributes:
        step: The step.
        fallback: Metadata of the Triton backend.
        plans: Split plans of a decode step by attention bounds, made by the first layer that has
            them.
    """

    step: StepLayout
    fallback: Any
    plans: dict[AttentionBounds, SplitPlan] = field(default_factory=dict)

    @property
    def is_decode(self) -> bool:
        """True if no request has more than one token."""
        return self.step.max_query_len <= 1


class CudaBackend(AttentionBackend):
    """Attention over a paged KV cache of the layout [B, 2, K, S, D], for GPUs from 8.0 on.

    Args:
        shape: Shape of the backend.
        kernels: Object that runs the kernels; None: kernels compiled for this GPU.

    Raises:
        PluginLoadError: The kernels could not be compiled or loaded.
    """

    fuses_rotary: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape, kernels: DecodeKernels | None = None) -> None:
        super().__init__(shape)
        self._variant = DecodeVariant.of(shape)
        self._kernels = kernels or DeviceKernels(self._variant, shape.device)
        self._fallback = TritonBackend(shape)
        self._splits = _splits_of(shape)
        self._scratch = Scratch.allocate(shape, self._splits)

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return the bytes of the partial outputs, for decode steps and for other steps."""
        slots, num_kv_heads, rows = Scratch.sizes(shape, _splits_of(shape))
        own = slots * num_kv_heads * rows * (shape.head_dim + 2) * torch.float32.itemsize
        return own + TritonBackend.workspace_bytes(shape)

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as [B, 2, K, S, D].

        Raises:
            RefusedError: The pages are not K and V of whole heads, or are not aligned to vectors of
                16 bytes.
        """
        pages = kv_layout.view_pages(raw, spec, num_blocks, NAME)
        if raw.data_ptr() % VECTOR_BYTES or pages.stride(0) * pages.itemsize % VECTOR_BYTES:
            raise RefusedError(
                f"{NAME} needs an alignment of {VECTOR_BYTES} bytes, and the pages of "
                f"{spec.layer.name} have a stride of {pages.stride(0) * pages.itemsize} bytes and "
                f"{raw.data_ptr():#x} as start address"
            )
        return pages

    def prepare(self, step: StepLayout) -> StepMetadata:
        """Keep the step; the first layer of each attention bounds makes the plan on the device."""
        return StepMetadata(step, self._fallback.prepare(step))

    def forget_context(self) -> None:
        """Forward the call to the Triton backend; this backend keeps no context."""
        self._fallback.forget_context()

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        kv_cache: Tensor,  # [B, 2, K, S, D]
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Write `k` and `v` to their slots, then attend."""
        if not metadata.is_decode:
            return self._fallback.forward(q, k, v, kv_cache, metadata.fallback, layer)
        pages = kv_layout.split_pages(kv_cache, self.shape)
        kv_write.write_kv(k, v, pages, metadata.step.slot_mapping, layer)
        return self._decode(q, pages, metadata, layer)

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, H + 2 * K, D]
        rotary: RotaryStep,
        kv_cache: Tensor,  # [B, 2, K, S, D]
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Norm, rotate and write in one launch, then attend; `qkv` is overwritten."""
        if not metadata.is_decode:
            return self._fallback.forward_rotary(qkv, rotary, kv_cache, metadata.fallback, layer)
        pages = kv_layout.split_pages(kv_cache, self.shape)
        slots, num_heads = metadata.step.slot_mapping, self.shape.num_heads
        q = kv_write.rotate_and_write(qkv, rotary, pages, slots, layer, num_heads)
        return self._decode(q, pages, metadata, layer)

    def _decode(
        self, q: Tensor, pages: kv_layout.Pages, metadata: StepMetadata, layer: AttentionLayerParams
    ) -> Tensor:  # [T, H, D]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not len(q):
            return out
        q = q if _is_in_vectors(q) else q.contiguous()
        plan = self._plan(metadata, AttentionBounds(layer.sliding_window, layer.attention_chunk))
        step, variant = self._decode_step(q, out, pages, metadata.step, plan, layer), self._variant
        head_groups = -(-step.group // variant.block_heads)
        num_blocks = len(plan.items) * step.num_kv_heads * head_groups
        self._kernels.launch("paged_decode", (num_blocks, 1), step)
        rows = max(step.num_requests, step.num_tokens)
        self._kernels.launch(
            "combine", (rows, -(-self.shape.num_heads // step.combined_heads)), step
        )
        return out

    def _plan(self, metadata: StepMetadata, bounds: AttentionBounds) -> SplitPlan:
        plan = metadata.plans.get(bounds)
        if plan is None:
            plan = metadata.plans[bounds] = plan_splits(metadata.step, bounds, self._splits)
        return plan

    def _decode_step(
        self,
        q: Tensor,
        out: Tensor,
        pages: kv_layout.Pages,
        step: StepLayout,
        plan: SplitPlan,
        layer: AttentionLayerParams,
    ) -> DecodeStep:
        shape, (q_factor, soft_cap, v_factor) = self.shape, _factors(pages, layer)
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
            v_factor=v_factor,
        )


def _splits_of(shape: AttentionShape) -> SplitSizes:
    return SplitSizes.of(shape, UNIT, max_queries=1)


def _is_in_vectors(q: Tensor) -> bool:
    """Return whether each head is contiguous and aligned to a vector."""
    starts = (q.data_ptr(), q.stride(0) * q.itemsize, q.stride(1) * q.itemsize)
    return q.stride(2) == 1 and not any(start % VECTOR_BYTES for start in starts)


def _factors(pages: kv_layout.Pages, layer: AttentionLayerParams) -> tuple[float, float, float]:
    """Return the factor of the scores, the soft cap, and the factor of the output."""
    is_float8 = pages.kind == "float8"
    k_factor = FLOAT8_UNIT * layer.k_scale if is_float8 else 1.0
    v_factor = FLOAT8_UNIT * layer.v_scale if is_float8 else 1.0
    score, cap = layer.scale * k_factor, layer.logit_soft_cap
    if cap is None:
        return score * LOG2_E, 0.0, v_factor
    return score / cap, cap * LOG2_E, v_factor
