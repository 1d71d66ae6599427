"""Attention backend `triton`: split-KV decode and blockwise prefill over a paged KV cache.

A step of single tokens is three launches per layer: write, attend, merge. A mixed step has one more
launch, for the requests with more tokens. Nothing is copied from the device, and the host's lists
only avoid programs without work, so any step can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from quire.interfaces.attention import AttentionLayerParams, AttentionShape
from quire_attention_backends.shared.kv_layout import Pages
from quire_attention_backends.shared.split_plan import SplitSizes
from quire_attention_backends.triton.paged_attention import attend
from quire_attention_backends.triton.paged_backend import PagedBackend, StepMetadata
from quire_attention_backends.triton.paged_launch import LayerLaunch, PagedCall
from quire_attention_backends.triton.paged_sizes import decode_sizes, group_size, prompt_sizes

if TYPE_CHECKING:
    from torch import Tensor


class TritonBackend(PagedBackend):
    """Attention by Triton kernels, for decode and prefill."""

    name: ClassVar[str] = "triton"

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._launches: dict[AttentionLayerParams, LayerLaunch] = {}

    @staticmethod
    def splits_of(shape: AttentionShape) -> SplitSizes:
        """Return the split sizes; batch-invariant mode splits only single tokens."""
        sizes, group = decode_sizes(shape), group_size(shape)
        return SplitSizes.of(
            shape,
            sizes.tokens,
            programs_per_item=shape.num_kv_heads,
            max_queries=1 if shape.batch_invariant else max(1, sizes.rows // group),
            block_queries=prompt_sizes(shape).rows // group,
        )

    def attend(
        self, q: Tensor, pages: Pages, metadata: StepMetadata, layer: AttentionLayerParams
    ) -> Tensor:  # [T, H, D]
        """Return the attention of `q`; padding rows are undefined."""
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not len(q):
            return out
        if q.stride()[1:] != (self.shape.head_dim, 1):
            q = q.contiguous()
        launch = self._launch(layer)
        plan = self._plan(metadata, launch.bounds)
        attend(PagedCall(self.shape, metadata.step, q, out, pages, plan, self._scratch), launch)
        return out

    def _launch(self, layer: AttentionLayerParams) -> LayerLaunch:
        launch = self._launches.get(layer)
        if launch is None:
            launch = self._launches[layer] = LayerLaunch.of(self.shape, self._splits, layer)
        return launch
