"""Attention backend `cpu`: norm, rotation, KV write and attention of a layer in one C++ call.

Data that is the same for all layers of a step, or for a layer in all steps, is put into structures
once, so a call passes only pointers. The page layout is that of `kv_layout`, so `torch_sdpa` can
read what this backend wrote.
"""

from __future__ import annotations

from ctypes import CDLL, addressof, byref, c_int64
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from quire.interfaces.attention import (
    AttentionLayerParams,
    AttentionShape,
    RotaryStep,
    StepLayout,
)
from quire_attention_backends.cpu import cpu_library
from quire_attention_backends.cpu.cpu_library import (
    KINDS,
    PAIRS,
    Heads,
    LayerArguments,
    Step,
    multiplies_pairs,
)
from quire_attention_backends.shared.kv_layout import PagesBackend, kind_of
from quire_attention_backends.shared.score_factors import kv_units, score_factors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerConstants:
    """Constants of a layer for the kernels, with references that keep them alive.

    Attributes:
        params: Parameters of the layer; referenced, so that no other object gets the same id.
        structure: The constants.
        address: Address of the structure.
    """

    params: AttentionLayerParams
    structure: LayerArguments
    address: int


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """Description of a step for the kernels, with references that keep it alive.

    Attributes:
        step: Owner of the tensors that the structure points to.
        costs: `[R + 1]` int64, scratch memory of the kernels.
        structure: The description.
        address: Address of the structure.
    """

    step: StepLayout
    costs: Tensor
    structure: Step
    address: int


class CpuBackend(PagesBackend):
    """Attention of float32 queries over a paged KV cache, by C++ compiled for this processor.

    Products are in float32. If the compute dtype and the cache are bfloat16 and the processor
    multiplies pairs of it, queries and softmax weights are rounded to bfloat16; sums are float32.

    It uses the number of threads that torch has when the backend is built.
    """

    name: ClassVar[str] = "cpu"
    fuses_rotary: ClassVar[bool] = True

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__(shape)
        self._library = cpu_library.LIBRARY.load()
        self._heads, self._scratch = _heads(shape, self._library)
        self._heads_address = addressof(self._heads)
        self._layers: dict[tuple[int, int], LayerConstants] = {}

    def prepare(self, step: StepLayout) -> StepMetadata:
        """Collect the addresses of the step's tensors."""
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
        kv_cache: Tensor,  # as `kv_view` returned it
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Write `k` and `v` to their slots, then attend; padding rows are undefined."""
        q, k, v = (_contiguous_heads(tensor) for tensor in (q, k, v))
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
        qkv: Tensor,  # [T, H + 2 * K, D], contiguous; q in it is overwritten
        rotary: RotaryStep,
        kv_cache: Tensor,
        metadata: StepMetadata,
        layer: AttentionLayerParams,
    ) -> Tensor:  # [T, H, D]
        """Norm, rotate and write, then attend; `qkv` are the projected heads."""
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
        """Return the address of a layer's structure, built in the layer's first step."""
        key = id(layer), kv_cache.data_ptr()
        constants = self._layers.get(key)
        if constants is None:  # never removed, because traced CPU graphs contain the addresses
            constants = self._layers[key] = _layer_constants(layer, kv_cache, self.shape)
        return constants.address


def _heads(shape: AttentionShape, library: CDLL) -> tuple[Heads, Tensor]:
    """Return the structure that all layers share, and the scratch memory that it points to."""
    heads = Heads(
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        KINDS.index(_kind(shape)),
        torch.get_num_threads(),
    )
    size = c_int64()
    library.attention_scratch(byref(heads), byref(size))
    scratch = torch.zeros(size.value, dtype=torch.float32)  # padding must not be NaN
    heads.scratch = scratch.data_ptr()
    return heads, scratch


def _kind(shape: AttentionShape) -> str:
    """Return the kind of the products; pairs are of adjacent elements and of adjacent keys."""
    is_even = shape.head_dim % 2 == 0 and shape.block_size % 2 == 0
    may_round = shape.product_dtype == shape.kv_dtype == "bfloat16"
    return PAIRS if may_round and is_even and multiplies_pairs() else shape.kv_dtype


def _layer_constants(
    layer: AttentionLayerParams, kv_cache: Tensor, shape: AttentionShape
) -> LayerConstants:
    k_scale, v_scale = kv_units(kind_of(shape.kv_dtype), layer)
    structure = LayerArguments(
        kv_cache.data_ptr(),
        kv_cache.stride(0) * kv_cache.itemsize,
        layer.sliding_window or 0,
        layer.attention_chunk or 0,
        None if layer.sinks is None else layer.sinks.data_ptr(),
        None if layer.alibi_slopes is None else layer.alibi_slopes.data_ptr(),
        *score_factors(layer, k_scale),
        k_scale,
        v_scale,
    )
    return LayerConstants(layer, structure, addressof(structure))


def _contiguous_heads(heads: Tensor) -> Tensor:  # [T, any, D]
    """Return the heads, contiguous within each token."""
    _, num_heads, head_dim = heads.shape
    is_whole = heads.stride(2) == 1 and (num_heads == 1 or heads.stride(1) == head_dim)
    return heads if is_whole else heads.contiguous()
