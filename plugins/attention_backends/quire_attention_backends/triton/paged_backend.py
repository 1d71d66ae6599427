"""Base of the attention backends for GPUs: K and V written by Triton kernels, plans once per step.

Windows and chunks differ between layers, so there is a split plan for each attention bounds, made
on the device by the first layer that has them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from quire.interfaces.attention import (
    AttentionLayerParams,
    AttentionShape,
    RotaryStep,
    StepLayout,
)
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.kv_layout import Pages, PagesBackend, split_pages
from quire_attention_backends.shared.split_plan import SplitPlan, SplitSizes, plan_splits
from quire_attention_backends.triton import kv_write
from quire_attention_backends.triton.paged_launch import Scratch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class StepMetadata:
    """Metadata of a step, shared by all layers; plans are keyed by attention bounds."""

    step: StepLayout
    plans: dict[AttentionBounds, SplitPlan] = field(default_factory=dict)


class PagedBackend(PagesBackend):
    """Attention over a paged KV cache of the layout [B, 2, K, S, D], for GPUs from 8.0 on."""

    fuses_rotary: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._splits = self.splits_of(shape)
        self._scratch = Scratch.allocate(shape, self._splits)

    @staticmethod
    @abstractmethod
    def splits_of(shape: AttentionShape) -> SplitSizes:
        """Return the split sizes of a shape."""

    @abstractmethod
    def attend(
        self, q: Tensor, pages: Pages, metadata: StepMetadata, layer: AttentionLayerParams
    ) -> Tensor:  # [T, H, D]
        """Return the attention of `q` `[T, H, D]` over the pages, which have the step's K and V.

        Padding rows of the output are undefined and may be NaN: the model's later computations on
        them stay in these rows, and their K and V are written to the null block.
        """

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return the bytes of the partial outputs."""
        slots, num_kv_heads, rows = Scratch.sizes(shape, cls.splits_of(shape))
        return slots * num_kv_heads * rows * (shape.head_dim + 2) * torch.float32.itemsize

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
        """Write `k` and `v` to their slots, then attend."""
        pages = split_pages(kv_cache, self.shape)
        kv_write.write_kv(k, v, pages, metadata.step.slot_mapping, layer)
        return self.attend(q, pages, metadata, layer)

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, H + 2 * K, D]
        rotary: RotaryStep,
        kv_cache: Tensor,
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Norm, rotate and write in one launch, then attend; `qkv` is overwritten."""
        pages, num_heads = split_pages(kv_cache, self.shape), self.shape.num_heads
        slots = metadata.step.slot_mapping
        q = kv_write.rotate_and_write(qkv, rotary, pages, slots, layer, num_heads)
        return self.attend(q, pages, metadata, layer)

    def _plan(self, metadata: StepMetadata, bounds: AttentionBounds) -> SplitPlan:
        plan = metadata.plans.get(bounds)
        if plan is None:
            plan = metadata.plans[bounds] = plan_splits(metadata.step, bounds, self._splits)
        return plan
