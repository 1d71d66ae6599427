"""Inputs and outputs of decode steps on CPUs, in C++: one call for all requests."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, addressof, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.native.layer_kernels import libraries
from quire.native.layer_kernels.cpu_layers import wrong_rows


class _BlockGroup(Structure):
    """The C struct `BlockGroup` of the library."""

    _fields_: ClassVar = [
        ("blocks", c_void_p),
        *((name, c_int64) for name in ("width", "block_size")),
        *((name, c_void_p) for name in ("block_rows", "slot_mapping")),
    ]


class _DecodeTables(Structure):
    """The C struct `DecodeTables` of the library."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("num_computed", "num_known", "adapters", "token_ids")),
        ("tokens_per_row", c_int64),
        *((name, c_void_p) for name in ("slots", "input_ids", "positions", "sampled_positions")),
        *((name, c_void_p) for name in ("adapter_index", "seq_lens", "groups")),
        ("num_groups", c_int64),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """State of all slots, whose memory does not move.

    Attributes:
        num_computed: Number of tokens whose KV is computed, `[slots]` int64.
        num_known: Number of known tokens, `[slots]` int64.
        adapters: Adapter index, or -1, `[slots]` int32.
        token_ids: Token ids, `[at least slots, max_model_len]` int32, contiguous.
    """

    num_computed: NDArray[Any]
    num_known: NDArray[Any]
    adapters: NDArray[Any]
    token_ids: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTable:
    """The block table of a KV group, and the buffers for its part of a step.

    Attributes:
        blocks: Block ids by slot, `[slots, width]` int32.
        block_size: Tokens in a block.
        block_rows: Block ids of the step's requests, `[R, width]` int32.
        slot_mapping: KV slot of each token of the step, `[R]` int64.
    """

    blocks: NDArray[Any]
    block_size: int
    block_rows: Tensor
    slot_mapping: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBuffers:
    """Buffers for the inputs of a step of up to R requests; int64 unless noted.

    Attributes:
        slots: Slot of each request, which the caller writes.
        input_ids: Token to compute.
        positions: Its position.
        sampled_positions: Position of the token to sample.
        adapter_index: Adapter index, or -1.
        seq_lens: Number of tokens with the one to compute, int32.
    """

    slots: Tensor
    input_ids: Tensor
    positions: Tensor
    sampled_positions: Tensor
    adapter_index: Tensor
    seq_lens: Tensor

    @classmethod
    def empty(cls, size: int) -> DecodeBuffers:
        """Return zeros for steps of up to `size` requests."""
        return cls(
            **{name: torch.zeros(size, dtype=torch.int64) for name in cls.__slots__[:-1]},
            seq_lens=torch.zeros(size, dtype=torch.int32),
        )


class DecodeStep:
    """Gathers the inputs of decode steps from the slots' state, and appends sampled tokens to it.

    Args:
        state: State of the slots.
        tables: Block tables of the KV groups.
        buffers: Buffers of the step.
    """

    def __init__(
        self, state: SlotState, tables: Sequence[BlockTable], buffers: DecodeBuffers
    ) -> None:
        library = libraries.LAYERS.load()
        self._gather, self._append = library.gather_decode, library.append_tokens
        self._kept = (state, tuple(tables), buffers)
        groups = (_BlockGroup * len(tables))(*map(_block_group, tables))
        self._tables = _DecodeTables(
            state.num_computed.ctypes.data, state.num_known.ctypes.data, state.adapters.ctypes.data,
            state.token_ids.data_ptr(), state.token_ids.shape[1], buffers.slots.data_ptr(),
            buffers.input_ids.data_ptr(), buffers.positions.data_ptr(),
            buffers.sampled_positions.data_ptr(), buffers.adapter_index.data_ptr(),
            buffers.seq_lens.data_ptr(), addressof(groups), len(tables),
        )  # fmt: skip
        self._groups = groups
        self._address = addressof(self._tables)

    def gather(self, num_requests: int) -> None:
        """Write the inputs of a step whose slots are in the buffers."""
        self._gather(self._address, num_requests)

    def append(self, token_ids: Tensor) -> None:  # [R] int32
        """Append one token to each slot of the gathered step.

        Raises:
            ValueError: The token ids are not contiguous int32.
        """
        if token_ids.dtype != torch.int32 or not token_ids.is_contiguous():
            raise ValueError(f"token ids must be contiguous int32, got {token_ids.dtype}")
        self._append(self._address, token_ids.data_ptr(), len(token_ids))


def _block_group(table: BlockTable) -> _BlockGroup:
    return _BlockGroup(
        table.blocks.ctypes.data, table.blocks.shape[1], table.block_size,
        table.block_rows.data_ptr(), table.slot_mapping.data_ptr(),
    )  # fmt: skip


class PackTokens:
    """Packing of sampled tokens with their logits."""

    def __init__(self) -> None:
        self._pack = libraries.LAYERS.load().pack_tokens

    def __call__(
        self,
        logits: Tensor,  # [N, V] float32; each row contiguous
        token_ids: Tensor,  # [N] int64
    ) -> Tensor:  # [2, N] int32
        """Return the ids and the bits of their logits; NaN for an id outside of the vocabulary.

        Raises:
            ValueError: Dtypes or strides are wrong.
        """
        if logits.dtype != torch.float32 or logits.stride(1) != 1:
            raise wrong_rows(logits, logits.shape[1])
        if token_ids.dtype != torch.int64:
            raise ValueError(f"token ids must be int64, got {token_ids.dtype}")
        token_ids, count = token_ids.contiguous(), len(token_ids)
        packed = torch.empty(2, count, dtype=torch.int32)
        self._pack(
            token_ids.data_ptr(), logits.data_ptr(), logits.stride(0), logits.shape[1], count,
            packed.data_ptr(),
        )  # fmt: skip
        return packed
