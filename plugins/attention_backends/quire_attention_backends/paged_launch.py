"""What each paged kernel is told, in one order: who asks, where the cache lies, what is seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from quire.interfaces.attention import AttentionLayerParams, AttentionShape, StepLayout
from quire.machine import interprets_kernels
from quire_attention_backends.kv_codec import FLOAT8_UNIT
from quire_attention_backends.kv_layout import Pages
from quire_attention_backends.paged_sizes import TileSizes, group_size, padded
from quire_attention_backends.paged_tiles import LOG2_E
from quire_attention_backends.split_plan import SplitPlan, SplitSizes


@dataclass(frozen=True, slots=True)
class Scratch:
    """Partial answers, which only live between two kernels of a layer.

    Attributes:
        acc: `[slots, K, rows, D]` float32, sums that are not divided yet.
        stats: `[slots, K, rows, 2]` float32, the largest exponent and the denominator.
    """

    acc: Tensor
    stats: Tensor

    @classmethod
    def sizes(cls, shape: AttentionShape, splits: SplitSizes) -> tuple[int, int, int]:
        """Return slots, K and the rows of a slot."""
        rows = splits.max_queries * group_size(shape)
        return splits.max_partials, shape.num_kv_heads, rows

    @classmethod
    def allocate(cls, shape: AttentionShape, splits: SplitSizes) -> Scratch:
        """Make it, once for a backend."""
        sizes = cls.sizes(shape, splits)
        acc = torch.empty(*sizes, shape.head_dim, dtype=torch.float32, device=shape.device)
        return cls(acc, torch.empty(*sizes, 2, dtype=torch.float32, device=shape.device))


@dataclass(frozen=True, slots=True)
class PagedCall:
    """One layer of one step."""

    shape: AttentionShape
    splits: SplitSizes
    step: StepLayout
    layer: AttentionLayerParams
    q: Tensor  # [T, H, D], heads contiguous
    out: Tensor  # [T, H, D], contiguous
    pages: Pages
    plan: SplitPlan
    scratch: Scratch

    def arguments(self) -> tuple[Any, ...]:
        """Return what `_answer_short` and `_answer_prompts` begin with."""
        layer, pages, step = self.layer, self.pages, self.step
        scales = pages.data if pages.scales is None else pages.scales
        unit, cap_unit, v_unit = self._units()
        return (
            self.q,
            self.out,
            pages.data,
            scales,
            self.out if layer.sinks is None else layer.sinks,
            step.block_table,
            step.query_start,
            step.seq_lens,
            self.q.stride(0),
            pages.data.stride(0),
            0 if pages.scales is None else pages.scales.stride(0),
            step.block_table.stride(0),
            layer.sliding_window or 0,
            layer.attention_chunk or 0,
            unit,
            cap_unit,
            v_unit,
        )

    def constants(self, sizes: TileSizes) -> dict[str, Any]:
        """Return the constants of both, and how they are launched."""
        shape, layer = self.shape, self.layer
        return {
            "K": shape.num_kv_heads,
            "G": group_size(shape),
            "D": shape.head_dim,
            "S": shape.block_size,
            "DP": padded(shape.head_dim),
            "M": sizes.rows,
            "N": sizes.tokens,
            "SPLIT": self.splits.unit,
            "SHORT": self.splits.max_queries,
            "KIND": self.pages.kind,
            "BY_ROWS": shape.batch_invariant and interprets_kernels(),
            "TYPE": self._product_type(),
            "HAS_CAP": layer.logit_soft_cap is not None,
            "HAS_SINKS": layer.sinks is not None,
            "HAS_REACH": layer.sliding_window is not None or layer.attention_chunk is not None,
            "IS_FIXED": shape.batch_invariant,
            "num_warps": sizes.num_warps,
            "num_stages": sizes.num_stages,
            "enable_fp_fusion": not shape.batch_invariant,
        }

    def _product_type(self) -> tl.dtype:
        """Return the type of what is multiplied."""
        if self.shape.dtype == torch.float32:
            return tl.float32
        if self.pages.kind != "plain" or self.shape.dtype == torch.float16:
            return tl.float16
        return tl.float32 if interprets_kernels() else tl.bfloat16  # it cannot multiply these

    def _units(self) -> tuple[float, float, float]:
        """Return the factors of scores, of scores under a cap, and of answers."""
        layer, code = self.layer, FLOAT8_UNIT if self.pages.kind == "float8" else 1.0
        is_scaled = self.pages.kind == "float8"
        score = layer.scale * code * (layer.k_scale if is_scaled else 1.0)
        v_unit = code * (layer.v_scale if is_scaled else 1.0)
        cap = layer.logit_soft_cap
        if cap is None:
            return score * LOG2_E, 0.0, v_unit
        return cap * LOG2_E, score / cap, v_unit
