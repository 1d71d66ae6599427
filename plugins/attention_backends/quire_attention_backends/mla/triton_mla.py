"""Latent attention in Triton: three launches per layer, the same for prompts and single tokens.

The first launch writes the step's rows to the cache, the second computes the items of the split
plan, and the third merges the rows that were divided among several items. The plan is made once per
step and used by all layers. Every token of a step is a row of the plan, so a long prompt costs as
much as the same number of single tokens. Its rows are never divided, because there is enough work,
and each of them reads the context again, from the L2 cache.

Tile sizes are calculated and follow from compiler output; they are not measured. 16 heads fill the
smallest matrix instruction, 32 read a tile half as often, and 64 would spill. If queries or cache
are float32, only half a tile fits. float32 is multiplied exactly, without tensor cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from triton.runtime import driver

from quire.errors import RefusedError
from quire.interfaces.attention import AttentionShape, StepLayout
from quire.interfaces.mla import MLAShape
from quire_attention_backends.mla.mla_kernels import attend_items, merge_parts
from quire_attention_backends.mla.mla_pages import LatentRowsBackend
from quire_attention_backends.mla.mla_rows import TokenRows, write_rows
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.score_factors import LOG2_E
from quire_attention_backends.shared.split_plan import SplitPlan, SplitSizes, plan_splits

if TYPE_CHECKING:
    from torch import Tensor

LATENT_DIMS = (32, 64, 128, 256, 512)
ROPE_DIMS = (16, 32, 64)
PROGRAMS_PER_SM = 4  # two run at once, so the last one to start costs a fourth of the total time
MANY_PROGRAMS = 2**13  # this many exit within microseconds if there is nothing to merge
TWO_TILES_BYTES = 112 * 1024  # of shared memory, for 32 heads


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile sizes and launch options of the kernel.

    Attributes:
        num_heads: M, heads of a program.
        num_tokens: N, tokens of a tile.
        num_warps: Number of warps of a program.
        num_stages: Stages of the software pipeline; with 3 the next tile is loaded while one is
            multiplied, with 2 it is not.
    """

    num_heads: int
    num_tokens: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, shape: AttentionShape) -> Tiles:
        """Choose the tile sizes for a shape."""
        is_wide = shape.kv_dtype == "float32"
        if shape.dtype == torch.float32:
            return cls(16, 16, 8, 2 if is_wide else 1)
        num_heads = 16 if shape.num_heads <= 16 else 32
        if is_wide:
            return cls(num_heads, 16, 8, 2)
        if num_heads == 16:
            return cls(16, 32, 4, 3)
        return cls(32, 32, 8, 3 if _shared_bytes(shape.device) >= TWO_TILES_BYTES else 2)

    def sizes(self, shape: AttentionShape) -> SplitSizes:
        """Return the split sizes of a step."""
        return SplitSizes.of(
            shape,
            self.num_tokens,
            programs_per_item=-(-shape.num_heads // self.num_heads),
            programs_per_sm=PROGRAMS_PER_SM,
        )


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """Metadata of a step, shared by all layers.

    Attributes:
        step: The step.
        rows: Request and visible length of each token.
        plan: Split plan, with a row per token.
    """

    step: StepLayout
    rows: TokenRows
    plan: SplitPlan


class TritonMLABackend(LatentRowsBackend):
    """Latent attention over a paged cache of the layout [B, S, C + P].

    Raises:
        RefusedError: The kernels do not support the sizes of a row.
    """

    name: ClassVar[str] = "triton_mla"

    def __init__(self, shape: MLAShape) -> None:
        super().__init__(shape)
        if shape.latent_dim not in LATENT_DIMS or shape.rope_dim not in ROPE_DIMS:
            raise RefusedError(
                f"triton_mla does not support latents of {shape.latent_dim} and rotated keys of "
                f"{shape.rope_dim} elements: the supported sizes are {_listed(LATENT_DIMS)} for "
                f"latents and {_listed(ROPE_DIMS)} for keys; use --attention-backend torch_mla"
            )
        self._tiles = Tiles.of(shape)
        self._sizes = self._tiles.sizes(shape)
        num_partials = self._sizes.max_partials * shape.num_heads
        self._partial = _floats(shape.device, num_partials, shape.latent_dim)
        self._row_max, self._row_sum = _floats(shape.device, 2, num_partials)

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return the bytes of all partial outputs; an upper limit if latent_dim is not known."""
        latent_dim = shape.latent_dim if isinstance(shape, MLAShape) else shape.head_dim
        num_partials = Tiles.of(shape).sizes(shape).max_partials * shape.num_heads
        return num_partials * (latent_dim + 2) * torch.float32.itemsize

    def prepare(self, step: StepLayout) -> StepMetadata:
        """Plan the step on the device."""
        rows = TokenRows.of(step)
        starts = torch.arange(len(rows.lengths) + 1, dtype=torch.int32, device=step.seq_lens.device)
        as_requests = replace(step, query_start=starts, seq_lens=rows.lengths)
        return StepMetadata(step, rows, plan_splits(as_requests, AttentionBounds(), self._sizes))

    def forward(
        self,
        q_latent: Tensor,  # [T, H, C]
        q_rope: Tensor,  # [T, H, P]
        latent: Tensor,  # [T, C]
        k_rope: Tensor,  # [T, P]
        kv_cache: Tensor,  # [B, S, C + P]
        metadata: StepMetadata,
        scale: float,
    ) -> Tensor:  # [T, H, C]
        """Write the rows to their slots, then attend; padding rows of the output are undefined."""
        out = torch.empty(q_latent.shape, dtype=q_latent.dtype, device=q_latent.device)
        if not len(out):
            return out
        q_latent, q_rope, latent, k_rope = map(_contiguous_rows, (q_latent, q_rope, latent, k_rope))
        write_rows(latent, k_rope, kv_cache, metadata.step.slot_mapping)
        self._attend(q_latent, q_rope, kv_cache, metadata, scale * LOG2_E, out)
        self._merge(metadata.plan.parts, out)
        return out

    def _attend(
        self,
        q_latent: Tensor,
        q_rope: Tensor,
        kv_cache: Tensor,
        metadata: StepMetadata,
        score_factor: float,
        out: Tensor,
    ) -> None:
        """Compute every item of the plan: outputs go to `out`, partial outputs to the scratch."""
        shape, tiles, plan = self.shape, self._tiles, metadata.plan
        programs_per_row = -(-shape.num_heads // tiles.num_heads)
        attend_items[len(plan.items) * programs_per_row,](
            q_latent,
            q_rope,
            kv_cache,
            metadata.step.block_table,
            plan.count,
            plan.items,
            metadata.rows.requests,
            out,
            self._partial,
            self._row_max,
            self._row_sum,
            q_latent.stride(0),
            q_latent.stride(1),
            q_rope.stride(0),
            q_rope.stride(1),
            kv_cache.stride(0),
            metadata.step.block_table.stride(0),
            score_factor,
            H=shape.num_heads,
            C=shape.latent_dim,
            P=shape.rope_dim,
            S=shape.block_size,
            M=tiles.num_heads,
            N=tiles.num_tokens,
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
            enable_fp_fusion=True,
        )

    def _merge(self, parts: Tensor, out: Tensor) -> None:
        """Merge the partial outputs of divided rows; many rows are merged by few programs."""
        num_rows, num_heads, latent_dim = out.shape
        heads = 1 if num_rows * num_heads <= MANY_PROGRAMS else 16
        merge_parts[num_rows, -(-num_heads // heads)](
            parts,
            self._partial,
            self._row_max,
            self._row_sum,
            out,
            H=num_heads,
            C=latent_dim,
            M=heads,
            num_warps=2 if heads == 1 else 4,
            enable_fp_fusion=True,
        )


def _contiguous_rows(x: Tensor) -> Tensor:
    """Return the tensor with contiguous rows."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _floats(device: torch.device, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=device)


def _shared_bytes(device: torch.device) -> int:
    """Return the shared memory limit of a program; without a GPU, a sufficient one."""
    if device.type != "cuda":
        return TWO_TILES_BYTES
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
