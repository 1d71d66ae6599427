"""Attention backend `triton`: split-KV decode and blockwise prefill over a paged KV cache.

A step of single tokens is three launches per layer: write, attend, merge. A mixed step has one more
launch, for the requests with more tokens; each request is computed by the kernel that suits it.
Nothing is copied from the device, and the host's lists only avoid programs without work, so any
step can be captured in a CUDA graph. Windows and chunks differ between layers, so there is a split
plan for each attention bounds, made by the first layer that has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    RotaryStep,
    StepLayout,
)
from quire_attention_backends.shared import kv_layout
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.split_plan import SplitPlan, SplitSizes, plan_splits
from quire_attention_backends.triton import kv_write
from quire_attention_backends.triton.paged_decode import attend_short
from quire_attention_backends.triton.paged_launch import LayerLaunch, PagedCall, Scratch
from quire_attention_backends.triton.paged_prompts import PromptBlocks, attend_prompts, count_blocks
from quire_attention_backends.triton.paged_sizes import decode_sizes, group_size, prompt_sizes

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec


@dataclass(slots=True)
class StepMetadata:
    """Metadata of a step, shared by all layers; plans are keyed by attention bounds."""

    step: StepLayout
    plans: dict[AttentionBounds, SplitPlan] = field(default_factory=dict)
    blocks: PromptBlocks | None = None


class TritonBackend(AttentionBackend):
    """Attention over a paged KV cache of the layout [B, 2, K, S, D], for GPUs from 8.0 on."""

    fuses_rotary: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._short, self._long = decode_sizes(shape), prompt_sizes(shape)
        self._splits = _splits_of(shape)
        self._scratch = Scratch.allocate(shape, self._splits)
        self._block_queries = self._long.rows // group_size(shape)
        self._launches: dict[AttentionLayerParams, LayerLaunch] = {}

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return the bytes of the partial outputs."""
        slots, num_kv_heads, rows = Scratch.sizes(shape, _splits_of(shape))
        return slots * num_kv_heads * rows * (shape.head_dim + 2) * torch.float32.itemsize

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as [B, 2, K, S, D], or int8 pages as bytes.

        Raises:
            RefusedError: The pages are not K and V of whole heads.
        """
        return kv_layout.view_pages(raw, spec, num_blocks, "triton")

    def prepare(self, step: StepLayout) -> StepMetadata:
        """Keep the step; the first layer of each attention bounds makes the plan on the device."""
        return StepMetadata(step)

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        kv_cache: Tensor,
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Write `k` and `v` to their slots, then attend.

        Padding rows of the output are undefined and may be NaN: the model's later computations on
        them stay in these rows, and their K and V are written to the null block.
        """
        pages = kv_layout.split_pages(kv_cache, self.shape)
        kv_write.write_kv(k, v, pages, metadata.step.slot_mapping, layer)
        return self._attend(q, pages, metadata, layer)

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, H + 2 * K, D]
        rotary: RotaryStep,
        kv_cache: Tensor,
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Norm, rotate and write in one launch, then attend; `qkv` is overwritten."""
        pages, shape = kv_layout.split_pages(kv_cache, self.shape), self.shape
        slots = metadata.step.slot_mapping
        q = kv_write.rotate_and_write(qkv, rotary, pages, slots, layer, shape.num_heads)
        return self._attend(q, pages, metadata, layer)

    def _attend(
        self, q: Tensor, pages: kv_layout.Pages, metadata: StepMetadata, layer: AttentionLayerParams
    ) -> Tensor:  # [T, H, D]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not len(q):
            return out
        if q.stride()[1:] != (self.shape.head_dim, 1):
            q = q.contiguous()
        launch, step = self._launch(layer), metadata.step
        plan = self._plan(metadata, launch.bounds)
        call = PagedCall(self.shape, step, q, out, pages, plan, self._scratch)
        attend_short(call, launch)
        if step.max_query_len > self._splits.max_queries:
            attend_prompts(call, launch, self._blocks(metadata))
        return out

    def _launch(self, layer: AttentionLayerParams) -> LayerLaunch:
        launch = self._launches.get(layer)
        if launch is None:
            launch = LayerLaunch.of(self.shape, self._splits, layer, self._short, self._long)
            self._launches[layer] = launch
        return launch

    def _plan(self, metadata: StepMetadata, bounds: AttentionBounds) -> SplitPlan:
        plan = metadata.plans.get(bounds)
        if plan is None:
            plan = metadata.plans[bounds] = plan_splits(metadata.step, bounds, self._splits)
        return plan

    def _blocks(self, metadata: StepMetadata) -> PromptBlocks:
        if metadata.blocks is None:
            queries, short = self._block_queries, self._splits.max_queries
            metadata.blocks = count_blocks(metadata.step, queries, short)
        return metadata.blocks


def _splits_of(shape: AttentionShape) -> SplitSizes:
    """Return the split sizes of a shape; batch-invariant mode splits only single tokens."""
    sizes = decode_sizes(shape)
    max_queries = 1 if shape.batch_invariant else max(1, sizes.rows // group_size(shape))
    return SplitSizes.of(shape, sizes.tokens, max_queries)
