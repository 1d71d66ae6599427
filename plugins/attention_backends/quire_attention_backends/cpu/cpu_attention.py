"""A layer of a step is one call of compiled C++: norm, rotation, writing, attention.

Whatever is the same for all layers of a step, or for a layer in all steps, is put into structures
once, so that a call is some pointers. The pages are those of `kv_layout`, so `torch_sdpa` reads
what this backend wrote.
"""

from __future__ import annotations

from ctypes import CDLL, addressof, byref, c_int64
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from quire.errors import RefusedError
from quire.interfaces.attention import (
    AttentionBackend,
    AttentionLayerParams,
    AttentionShape,
    RotaryStep,
    StepLayout,
)
from quire.native.library import NativeUnavailableError
from quire_attention_backends.cpu.cpu_library import KINDS, LIBRARY, Heads, LayerArguments, Step
from quire_attention_backends.shared.kv_layout import view_pages

if TYPE_CHECKING:
    from torch import Tensor

    from quire.interfaces.kv_cache import KVCacheSpec

NAME = "cpu"
LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class LayerConstants:
    """What the kernels know of a layer, and what must live as long as they do.

    Attributes:
        params: Whose constants they are; kept, so that nothing else gets its identity.
        address: Of the structure.
    """

    params: AttentionLayerParams
    structure: LayerArguments
    address: int


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """A step as the kernels are told it, and what must live as long.

    Attributes:
        step: Owns the tensors that the structure points to.
        costs: `[R + 1]` int64, for the kernels.
        address: Of the structure.
    """

    step: StepLayout
    costs: Tensor
    structure: Step
    address: int


class CpuBackend(AttentionBackend):
    """Attention of float32 queries over a paged KV cache, by C++ compiled for this processor.

    It takes as many threads as torch has when it is built.

    Raises:
        RefusedError: The kernels cannot be had on this machine.
    """

    fuses_rotary: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        try:
            self._library = LIBRARY.load()
        except NativeUnavailableError as error:
            raise RefusedError(
                f"the attention backend cpu has no kernels on this machine: {error}; take "
                "--attention-backend torch_sdpa, which needs none"
            ) from error
        self._heads, self._scratch = _heads(shape, self._library)
        self._heads_address = addressof(self._heads)
        self._layers: dict[tuple[int, int], LayerConstants] = {}

    @classmethod
    def begin_loading(cls) -> None:
        """Compile the kernels, or load what was compiled before, in the background."""
        LIBRARY.begin()

    @classmethod
    def kv_view(cls, raw: Tensor, spec: KVCacheSpec, num_blocks: int) -> Tensor:
        """Return the raw bytes as [B, 2, K, S, D]; int8 pages as uint8 [B, page bytes].

        Raises:
            RefusedError: The pages do not hold K and V of whole heads, of a type it knows.
        """
        return view_pages(raw, spec, num_blocks, NAME)

    def prepare(self, step: StepLayout) -> StepMetadata:
        """Collect the addresses of a step's numbers."""
        num_requests = len(step.seq_lens)
        costs = torch.empty(num_requests + 1, dtype=torch.int64)
        structure = Step(
            step.query_start.data_ptr(),
            step.seq_lens.data_ptr(),
            step.block_table.data_ptr(),
            step.block_table.stride(0),
            step.slot_mapping.data_ptr(),
            num_requests,
            costs.data_ptr(),
        )
        return StepMetadata(step, costs, structure, addressof(structure))

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,  # [T, K, D]
        kv_cache: Tensor,  # as `kv_view` made it
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Write `k` and `v` to their slots, then attend; rows of padding hold anything."""
        q, k, v = (_with_whole_tokens(tensor) for tensor in (q, k, v))
        out = torch.empty(q.shape, dtype=torch.float32)
        self._library.attend(
            self._heads_address,
            self._constants(layer, kv_cache),
            metadata.address,
            q.data_ptr(),
            q.stride(0),
            k.data_ptr(),
            k.stride(0),
            v.data_ptr(),
            v.stride(0),
            out.data_ptr(),
        )
        return out

    def forward_rotary(
        self,
        qkv: Tensor,  # [T, H + 2 * K, D], contiguous; q in it is written over
        rotary: RotaryStep,
        kv_cache: Tensor,
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Do the same from the heads as they were projected."""
        weight = rotary.norm_weight
        shape = (len(qkv), self.shape.num_heads, self.shape.head_dim)
        out = torch.empty(shape, dtype=torch.float32)
        self._library.turn_and_attend(
            self._heads_address,
            self._constants(layer, kv_cache),
            metadata.address,
            qkv.data_ptr(),
            rotary.table.data_ptr(),
            rotary.positions.data_ptr(),
            None if weight is None else weight.data_ptr(),
            rotary.norm_eps,
            out.data_ptr(),
        )
        return out

    def _constants(self, layer: AttentionLayerParams, kv_cache: Tensor) -> int:
        """Return the address of a layer's structure; it is built when the layer is new."""
        place = id(layer), kv_cache.data_ptr()
        known = self._layers.get(place)
        if known is None:  # they stay, for recorded calls have their addresses
            known = self._layers[place] = _layer_constants(layer, kv_cache, self.shape)
        return known.address


def _heads(shape: AttentionShape, library: CDLL) -> tuple[Heads, Tensor]:
    """Return what layers share, and the scratch memory that it names."""
    heads = Heads(
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        KINDS.index(shape.kv_dtype),
        torch.get_num_threads(),
    )
    size = c_int64()
    library.attention_scratch(byref(heads), byref(size))
    scratch = torch.zeros(size.value, dtype=torch.float32)  # what is padding stays a number
    heads.scratch = scratch.data_ptr()
    return heads, scratch


def _layer_constants(
    layer: AttentionLayerParams, kv_cache: Tensor, shape: AttentionShape
) -> LayerConstants:
    has_scales = shape.kv_dtype == "float8_e4m3fn"
    k_scale, v_scale = (layer.k_scale, layer.v_scale) if has_scales else (1.0, 1.0)
    cap = layer.logit_soft_cap
    structure = LayerArguments(
        kv_cache.data_ptr(),
        kv_cache.stride(0) * kv_cache.itemsize,
        layer.sliding_window or 0,
        layer.attention_chunk or 0,
        None if layer.sinks is None else layer.sinks.data_ptr(),
        layer.scale * k_scale * (LOG2_E if cap is None else 1.0 / cap),
        0.0 if cap is None else cap * LOG2_E,
        k_scale,
        v_scale,
    )
    return LayerConstants(layer, structure, addressof(structure))


def _with_whole_tokens(heads: Tensor) -> Tensor:  # [T, any, D]
    """Return heads that are contiguous within a token."""
    _, num_heads, head_dim = heads.shape
    is_whole = heads.stride(2) == 1 and (num_heads == 1 or heads.stride(1) == head_dim)
    return heads if is_whole else heads.contiguous()
