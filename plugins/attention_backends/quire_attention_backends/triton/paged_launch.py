"""Launch arguments, constants and scratch memory of the paged attention kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from quire.interfaces.attention import AttentionLayerParams, AttentionShape, StepLayout
from quire.machine.machine import interprets_kernels
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.kv_codec import FLOAT8_UNIT
from quire_attention_backends.shared.kv_layout import Pages, kind_of
from quire_attention_backends.shared.launch_sizes import next_power_of_two
from quire_attention_backends.shared.score_factors import LOG2_E, kv_units, score_factors
from quire_attention_backends.shared.split_plan import SplitPlan, SplitSizes
from quire_attention_backends.triton.paged_sizes import (
    TileSizes,
    decode_sizes,
    group_size,
    prompt_sizes,
)
from quire_attention_backends.triton.paged_tiles import V_LIFT

MERGE_ELEMENTS = 4096  # elements of partial outputs that are merged at a time
PARTS_IN_ORDER = 4
MERGE_WARPS = 8


@dataclass(frozen=True, slots=True)
class Scratch:
    """Partial outputs, which live only between two kernels of a layer.

    Attributes:
        acc: `[slots, K, rows, D]` float32, unnormalized sums.
        stats: `[slots, K, rows, 2]` float32, the largest exponent and the softmax denominator.
    """

    acc: Tensor
    stats: Tensor

    @classmethod
    def sizes(cls, shape: AttentionShape, splits: SplitSizes) -> tuple[int, int, int]:
        """Return the number of slots, K and the number of rows per slot."""
        rows = splits.max_queries * group_size(shape)
        return splits.max_partials, shape.num_kv_heads, rows

    @classmethod
    def allocate(cls, shape: AttentionShape, splits: SplitSizes) -> Scratch:
        """Allocate the scratch memory; once per backend."""
        sizes = cls.sizes(shape, splits)
        acc = torch.empty(*sizes, shape.head_dim, dtype=torch.float32, device=shape.device)
        return cls(acc, torch.empty(*sizes, 2, dtype=torch.float32, device=shape.device))


@dataclass(frozen=True, slots=True)
class LayerLaunch:
    """Launch parameters of one layer that are the same in every step.

    Attributes:
        layer: Parameters of the layer.
        bounds: Attention bounds of the layer.
        score_factor: Factor that turns scores into exponents to base 2.
        cap_factor: Factor of scores before the soft cap; 0 if there is none.
        alibi_factor: Factor that turns slopes of linear biases into units of scores.
        out_factor: Factor of the output.
        items: Constants and launch options of `_attend` for items.
        blocks: Constants and launch options of `_attend` for blocks.
        merging: Constants and launch options of `_merge_parts`.
    """

    layer: AttentionLayerParams
    bounds: AttentionBounds
    score_factor: float
    cap_factor: float
    alibi_factor: float
    out_factor: float
    items: dict[str, Any]
    blocks: dict[str, Any]
    merging: dict[str, Any]

    @classmethod
    def of(
        cls, shape: AttentionShape, splits: SplitSizes, layer: AttentionLayerParams
    ) -> LayerLaunch:
        """Compute the launch parameters; once per layer."""
        k_unit, v_unit = kv_units(kind_of(shape.kv_dtype), layer, FLOAT8_UNIT)
        score_factor, cap_factor = score_factors(layer, k_unit)
        if layer.logit_soft_cap is not None:  # scores are multiplied before and after the cap
            score_factor, cap_factor = cap_factor, score_factor
        return cls(
            layer,
            AttentionBounds.of(layer),
            score_factor,
            cap_factor,
            LOG2_E / score_factor,
            1 / V_LIFT if kind_of(shape.kv_dtype) == "int8" else v_unit,
            {**_constants(shape, splits, layer, decode_sizes(shape)), "IS_ITEM": True},
            {**_constants(shape, splits, layer, prompt_sizes(shape)), "IS_ITEM": False},
            _merge_constants(shape, splits, layer),
        )


@dataclass(frozen=True, slots=True)
class PagedCall:
    """Arguments of the kernels for one layer of one step."""

    shape: AttentionShape
    step: StepLayout
    q: Tensor  # [T, H, D], heads contiguous
    out: Tensor  # [T, H, D], contiguous
    pages: Pages
    plan: SplitPlan
    scratch: Scratch

    def arguments(self, launch: LayerLaunch) -> tuple[Any, ...]:
        """Return the arguments of `_attend` that items and blocks have in common."""
        layer, step, data, scales = launch.layer, self.step, self.pages.data, self.pages.scales
        return (
            self.q,
            self.out,
            data,
            data if scales is None else scales,
            self.out if layer.sinks is None else layer.sinks,
            self.out if layer.alibi_slopes is None else layer.alibi_slopes,
            step.block_table,
            step.query_start,
            step.seq_lens,
            self.scratch.acc,
            self.scratch.stats,
            self.plan.count,
            self.q.stride(0),
            data.stride(0),
            0 if scales is None else scales.stride(0),
            step.block_table.stride(0),
            len(step.seq_lens),
            layer.sliding_window or 0,
            layer.attention_chunk or 0,
            launch.score_factor,
            launch.cap_factor,
            launch.alibi_factor,
            launch.out_factor,
        )


def _constants(
    shape: AttentionShape, splits: SplitSizes, layer: AttentionLayerParams, sizes: TileSizes
) -> dict[str, Any]:
    """Return the constants of `_attend`, but for `IS_ITEM`."""
    return {
        "K": shape.num_kv_heads,
        "G": group_size(shape),
        "D": shape.head_dim,
        "S": shape.block_size,
        "DP": next_power_of_two(shape.head_dim),
        "M": sizes.rows,
        "N": sizes.tokens,
        "SPLIT": splits.unit,
        "SHORT": splits.max_queries,
        "KIND": kind_of(shape.kv_dtype),
        "BY_ROWS": shape.batch_invariant and interprets_kernels(),
        "TYPE": _product_type(shape),
        "HAS_CAP": layer.logit_soft_cap is not None,
        "HAS_SINKS": layer.sinks is not None,
        "HAS_ALIBI": layer.alibi_slopes is not None,
        "HAS_BOUNDS": layer.sliding_window is not None or layer.attention_chunk is not None,
        "IS_FIXED": shape.batch_invariant,
        "num_warps": sizes.num_warps,
        "num_stages": sizes.num_stages,
        "enable_fp_fusion": not shape.batch_invariant,
    }


def _merge_constants(
    shape: AttentionShape, splits: SplitSizes, layer: AttentionLayerParams
) -> dict[str, Any]:
    width = next_power_of_two(shape.head_dim)
    return {
        "K": shape.num_kv_heads,
        "G": group_size(shape),
        "D": shape.head_dim,
        "DP": width,
        "SHORT": splits.max_queries,
        "HAS_SINKS": layer.sinks is not None,
        "IS_FIXED": shape.batch_invariant,
        "PARTS": PARTS_IN_ORDER if shape.batch_invariant else MERGE_ELEMENTS // width,
        "num_warps": MERGE_WARPS,
        "enable_fp_fusion": not shape.batch_invariant,
    }


def _product_type(shape: AttentionShape) -> tl.dtype:
    """Return the operand type of the matrix products."""
    if shape.dtype == torch.float32:
        return tl.float32
    if kind_of(shape.kv_dtype) == "float8" or shape.dtype == torch.float16:
        return tl.float16
    return tl.float32 if interprets_kernels() else tl.bfloat16  # the interpreter has no bfloat16
