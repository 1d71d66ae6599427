"""Latent attention in Triton: three launches a layer, the same for prompts and single tokens.

The first writes the step's rows to the cache, the second computes the items of the split plan, and
the third merges the rows that several items share. The plan is made once a step and serves all
layers. Every token of a step is a row of the plan, so a long prompt costs what as many single
tokens would: it is never divided, because there is work enough, and reads its context from the L2
cache once a token.

Tiles are chosen by arithmetic and by what the compiler made of them, not measured: 16 heads fill
the smallest matrix instruction, 32 read a tile half as often, and 64 would spill. Where queries or
cache are float32 there is room for half a tile. float32 is multiplied exactly, without tensor
cores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from triton.runtime import driver

from quire.errors import RefusedError
from quire.interfaces.attention import AttentionShape, StepLayout
from quire.interfaces.mla import MLABackend, MLAShape
from quire_attention_backends.mla.mla_kernels import attend_items, merge_parts
from quire_attention_backends.mla.mla_pages import view_rows
from quire_attention_backends.mla.mla_rows import TokenRows, write_rows
from quire_attention_backends.shared.attention_bounds import AttentionBounds
from quire_attention_backends.shared.split_plan import SplitPlan, SplitSizes, plan_splits

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

LOG2_E = 1.4426950408889634
LATENT_DIMS = (32, 64, 128, 256, 512)
ROPE_DIMS = (16, 32, 64)
PROGRAMS_PER_SM = 4  # two run there at once, so the last to start costs a fourth of the whole
CPU_PROGRAMS = 12  # for the interpreter: enough to split, few enough to wait for
MANY_PROGRAMS = 2**13  # so many find out in microseconds that there is nothing to merge
TWO_TILES_BYTES = 112 * 1024  # of shared memory, for 32 heads


@dataclass(frozen=True, slots=True)
class Tiles:
    """How the kernel cuts its work.

    Attributes:
        num_heads: M, of a program.
        num_tokens: N, of a tile.
        num_stages: 3: the next tile is under way while one is multiplied; 2: it is not.
    """

    num_heads: int
    num_tokens: int
    num_warps: int
    num_stages: int

    @classmethod
    def of(cls, shape: AttentionShape) -> Tiles:
        """Choose for a shape."""
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
        """Say how a step is split."""
        programs_a_row = -(-shape.num_heads // self.num_heads)
        budget = max(1, _num_programs(shape.device) // programs_a_row)
        max_tokens = shape.max_blocks_per_request * shape.block_size
        return SplitSizes(
            unit=self.num_tokens,
            max_queries=1,
            budget=budget,
            max_units=-(-max_tokens // self.num_tokens),
            is_fixed=False,
        )


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """What all layers of a step share.

    Attributes:
        step: The step.
        rows: Its tokens.
        plan: Which program reads what.
    """

    step: StepLayout
    rows: TokenRows
    plan: SplitPlan


class TritonMLABackend(MLABackend):
    """Latent attention over a paged cache of the layout [B, S, C + P].

    Raises:
        RefusedError: The kernels cannot serve the sizes of a row.
    """

    def __init__(self, shape: MLAShape) -> None:
        super().__init__(shape)
        if shape.latent_dim not in LATENT_DIMS or shape.rope_dim not in ROPE_DIMS:
            raise RefusedError(
                f"triton_mla cannot serve latents of {shape.latent_dim} and rotated keys of "
                f"{shape.rope_dim} numbers: they must have one of {_listed(LATENT_DIMS)}, and one "
                f"of {_listed(ROPE_DIMS)}; take --attention-backend torch_mla"
            )
        self._tiles = Tiles.of(shape)
        self._sizes = self._tiles.sizes(shape)
        num_partials = self._sizes.max_partials * shape.num_heads
        self._partial = _floats(shape.device, num_partials, shape.latent_dim)
        self._peaks, self._masses = _floats(shape.device, 2, num_partials)

    @classmethod
    def workspace_bytes(cls, shape: AttentionShape) -> int:
        """Return the bytes of all partial answers; of a shape without a latent, at most."""
        latent_dim = shape.latent_dim if isinstance(shape, MLAShape) else shape.head_dim
        num_partials = Tiles.of(shape).sizes(shape).max_partials * shape.num_heads
        return num_partials * (latent_dim + 2) * torch.float32.itemsize

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as [B, S, C + P].

        Raises:
            RefusedError: They are none.
        """
        return view_rows(raw, spec, num_blocks, "triton_mla")

    def prepare(self, step: StepLayout) -> StepMetadata:
        """Plan the step, on the device."""
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
        """Write the rows to their slots, then attend; rows of padding come out undefined."""
        out = torch.empty(q_latent.shape, dtype=q_latent.dtype, device=q_latent.device)
        if not len(out):
            return out
        q_latent, q_rope, latent, k_rope = map(_with_rows, (q_latent, q_rope, latent, k_rope))
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
        unit: float,
        out: Tensor,
    ) -> None:
        """Compute every item of the plan: answers go to `out`, parts of answers to the scratch."""
        shape, tiles, plan = self.shape, self._tiles, metadata.plan
        programs_a_row = -(-shape.num_heads // tiles.num_heads)
        attend_items[len(plan.items) * programs_a_row,](
            q_latent,
            q_rope,
            kv_cache,
            metadata.step.block_table,
            plan.count,
            plan.items,
            metadata.rows.requests,
            out,
            self._partial,
            self._peaks,
            self._masses,
            q_latent.stride(0),
            q_latent.stride(1),
            q_rope.stride(0),
            q_rope.stride(1),
            kv_cache.stride(0),
            metadata.step.block_table.stride(0),
            unit,
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
        """Merge what several items left of a row; many rows are merged by few programs."""
        num_rows, num_heads, latent_dim = out.shape
        heads = 1 if num_rows * num_heads <= MANY_PROGRAMS else 16
        merge_parts[num_rows, -(-num_heads // heads)](
            parts,
            self._partial,
            self._peaks,
            self._masses,
            out,
            H=num_heads,
            C=latent_dim,
            M=heads,
            num_warps=2 if heads == 1 else 4,
            enable_fp_fusion=True,
        )


def _with_rows(x: Tensor) -> Tensor:
    """Return the tensor with the numbers of each row side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _floats(device: torch.device, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=device)


def _num_programs(device: torch.device) -> int:
    if device.type != "cuda":
        return CPU_PROGRAMS
    return PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


def _shared_bytes(device: torch.device) -> int:
    """Return what a program may have; of a GPU that is not there, that of the larger ones."""
    if device.type != "cuda":
        return TWO_TILES_BYTES
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(driver.active.utils.get_device_properties(index)["max_shared_mem"])


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
