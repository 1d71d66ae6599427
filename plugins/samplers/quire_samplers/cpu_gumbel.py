"""Sampling by Gumbel noise on CPUs: the noise and filters of `gumbel`, in C++ in one pass per row.

For the same seed it samples the same tokens as `gumbel`, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Structure, byref, c_void_p
from typing import TYPE_CHECKING, ClassVar

import torch

from quire.interfaces.sampling import SampledRows, Sampler
from quire_samplers import cpu_gumbel_library

if TYPE_CHECKING:
    from torch import Tensor

SCRATCH_PER_TOKEN = 4  # scratch elements of a thread for the filters


class _SlotFields(Structure):
    """Pointers to the per-slot fields, as the library reads them."""

    types: ClassVar = {
        "seed": torch.int64,
        "child": torch.int64,
        "temperature": torch.float32,
        "top_k": torch.int64,
        "top_p": torch.float32,
        "min_p": torch.float32,
    }
    _fields_: ClassVar = [(name, c_void_p) for name in types]

    @classmethod
    def of(cls, slot_fields: Mapping[str, Tensor]) -> _SlotFields:
        """Return the pointers to per-slot fields.

        Raises:
            ValueError: A field has another dtype, or is not contiguous.
        """
        for name, dtype in cls.types.items():
            tensor = slot_fields[name]
            if tensor.dtype != dtype or not tensor.is_contiguous():
                raise ValueError(
                    f"field {name} must be contiguous {dtype}, got {tensor.dtype} with strides "
                    f"{tensor.stride()}"
                )
        return cls(*[slot_fields[name].data_ptr() for name in cls.types])


class CpuGumbel(Sampler):
    """Sampler that reads `temperature`: rows with 0 are greedy, others sample by probability.

    It can fuse `temperature`, `min_p` and `top_k_top_p`, and then samples the same token as after
    the separate steps.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(vocab_size, device)
        self._threads = torch.get_num_threads()
        self._scratch: Tensor | None = None
        library = cpu_gumbel_library.LIBRARY.load()
        self._most_likely, self._sample = library.likeliest_tokens, library.sample_tokens

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Return a token for each row; tokens of probability zero are never sampled."""
        if rows.all_greedy:
            return self._take_most_likely(logits)
        return self._sample_tokens(logits, rows, None)

    def sample_fused(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Apply temperature, min-p, top-k and top-p, and sample; the logits are not changed."""
        if self._scratch is None:
            self._scratch = torch.empty(
                self._threads * SCRATCH_PER_TOKEN * self.vocab_size, dtype=torch.float32
            )
        return self._sample_tokens(logits, rows, self._scratch.data_ptr())

    def _take_most_likely(self, logits: Tensor) -> Tensor:
        stride, logits = _row_stride(logits, self.vocab_size)
        num_rows = len(logits)
        sampled = torch.empty(num_rows, dtype=torch.int64)
        self._most_likely(
            logits.data_ptr(), stride, num_rows, self.vocab_size, sampled.data_ptr(), self._threads
        )
        return sampled

    def _sample_tokens(self, logits: Tensor, rows: SampledRows, scratch: int | None) -> Tensor:
        stride, logits = _row_stride(logits, self.vocab_size)
        num_rows = len(logits)
        sampled = torch.empty(num_rows, dtype=torch.int64)
        slot_fields = _SlotFields.of(rows.slot_fields)
        slots, positions = _indices(rows.slots), _indices(rows.positions)
        self._sample(
            logits.data_ptr(), stride, num_rows, self.vocab_size,
            slots.data_ptr(), positions.data_ptr(), byref(slot_fields), scratch,
            sampled.data_ptr(), self._threads,
        )  # fmt: skip
        return sampled


def _row_stride(logits: Tensor, vocab_size: int) -> tuple[int, Tensor]:
    """Return the row stride and the logits, with contiguous rows.

    Raises:
        ValueError: The logits have another device, dtype or size.
    """
    if logits.dtype != torch.float32 or logits.shape[1] != vocab_size or not logits.is_cpu:
        raise ValueError(
            f"logits must be float32 [N, {vocab_size}], got {logits.dtype} {list(logits.shape)}; "
            f"they must be on the CPU, and are on {logits.device}"
        )
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    return logits.stride(0), logits


def _indices(indices: Tensor) -> Tensor:
    if indices.dtype != torch.int64:
        raise ValueError(f"slots and positions must be int64, got {indices.dtype}")
    return indices.contiguous()
