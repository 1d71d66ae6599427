"""Sampling by Gumbel noise on CPUs: the noise and filters of `gumbel`, in C++ in one pass per row.

For the same seed it samples the same tokens as `gumbel`, up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Structure, byref, c_void_p
from typing import TYPE_CHECKING, ClassVar

import torch

from quire.interfaces.sampling import SampledRows, Sampler
from quire_samplers.gumbel import cpu_gumbel_library

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
        return self.sample_shard(self._whole(logits), rows)[1]

    def sample_fused(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Apply temperature, min-p, top-k and top-p, and sample; the logits are not changed."""
        return self.sample_shard_fused(self._whole(logits), rows)[1]

    def sample_shard(self, logits: Tensor, rows: SampledRows) -> tuple[Tensor, Tensor]:
        """Return the largest score of each row and its token id, `[N]` both."""
        if rows.all_greedy:
            return self._take_most_likely(logits, rows.first_token_id)
        return self._sample_tokens(logits, rows, None)

    def sample_shard_fused(self, logits: Tensor, rows: SampledRows) -> tuple[Tensor, Tensor]:
        """Apply the temperature, and return what `sample_shard` returns; no row has filters."""
        if self._scratch is None:
            self._scratch = torch.empty(
                self._threads * SCRATCH_PER_TOKEN * self.vocab_size, dtype=torch.float32
            )
        return self._sample_tokens(logits, rows, self._scratch.data_ptr())

    def _take_most_likely(self, logits: Tensor, first_token_id: int) -> tuple[Tensor, Tensor]:
        logits = self._with_contiguous_rows(logits, first_token_id)
        scores, sampled = _results(len(logits))
        self._most_likely(
            logits.data_ptr(), logits.stride(0), *logits.shape, first_token_id,
            sampled.data_ptr(), scores.data_ptr(), self._threads,
        )  # fmt: skip
        return scores, sampled

    def _sample_tokens(
        self, logits: Tensor, rows: SampledRows, scratch: int | None
    ) -> tuple[Tensor, Tensor]:
        logits = self._with_contiguous_rows(logits, rows.first_token_id)
        scores, sampled = _results(len(logits))
        slot_fields = _SlotFields.of(rows.slot_fields)
        slots, positions = _indices(rows.slots), _indices(rows.positions)
        self._sample(
            logits.data_ptr(), logits.stride(0), *logits.shape, rows.first_token_id,
            slots.data_ptr(), positions.data_ptr(), byref(slot_fields), scratch,
            sampled.data_ptr(), scores.data_ptr(), self._threads,
        )  # fmt: skip
        return scores, sampled

    def _whole(self, logits: Tensor) -> Tensor:
        """Return the logits.

        Raises:
            ValueError: They are not those of the whole vocabulary.
        """
        if logits.shape[1] != self.vocab_size:
            raise ValueError(f"each row must have {self.vocab_size} logits, not {logits.shape[1]}")
        return logits

    def _with_contiguous_rows(self, logits: Tensor, first_token_id: int) -> Tensor:
        """Return the logits, with contiguous rows.

        Raises:
            ValueError: The logits have another device or dtype, or more tokens than there are.
        """
        num_tokens = self.vocab_size - first_token_id
        if logits.dtype != torch.float32 or logits.shape[1] > num_tokens or not logits.is_cpu:
            raise ValueError(
                f"logits must be float32 [N, up to {num_tokens}], got {logits.dtype} "
                f"{list(logits.shape)}; they must be on the CPU, and are on {logits.device}"
            )
        return logits if logits.stride(1) == 1 else logits.contiguous()


def _results(num_rows: int) -> tuple[Tensor, Tensor]:
    """Return memory for scores and token ids, `[N]` both."""
    scores = torch.empty(num_rows, dtype=torch.float32)
    return scores, torch.empty(num_rows, dtype=torch.int64)


def _indices(indices: Tensor) -> Tensor:
    if indices.dtype != torch.int64:
        raise ValueError(f"slots and positions must be int64, got {indices.dtype}")
    return indices.contiguous()
