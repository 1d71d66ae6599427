"""Sampling by Gumbel noise on CPUs: the noise and filters of `gumbel`, in C++ in one pass per row.

For the same seed it samples the same tokens as `gumbel`, up to rounding. If the library cannot be
compiled, the fused logits processors run one by one and `categorical` samples: the same
distribution, but other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Structure, byref, c_int, c_long, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows, Sampler
from quire.native.library import NativeLibrary
from quire_samplers.categorical import Categorical
from quire_samplers.min_p import MinP
from quire_samplers.temperature import Temperature
from quire_samplers.top_k_top_p import TopKTopP

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = (c_void_p, c_long, c_long, c_long)
SOURCE = Path(__file__).with_suffix(".cpp")
FUNCTIONS = {
    "likeliest_tokens": (*_ROWS, c_void_p, c_int),
    "sample_tokens": (*_ROWS, *(c_void_p,) * 5, c_int),
}
LIBRARY = NativeLibrary("CPU sampler", SOURCE, FUNCTIONS)
FUSED: tuple[type[LogitsProcessor], ...] = (Temperature, MinP, TopKTopP)  # in pipeline order
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
        self._by_torch = Categorical(vocab_size, device)
        self._fused = [step(vocab_size, device) for step in FUSED]
        self._threads = torch.get_num_threads()
        self._scratch: Tensor | None = None
        self._has_library = device.type == "cpu" and LIBRARY.is_available()
        if self._has_library:
            library = LIBRARY.load()
            self._most_likely, self._sample = library.likeliest_tokens, library.sample_tokens

    @classmethod
    def begin_loading(cls) -> None:
        """Start to compile the library while weights are loaded."""
        LIBRARY.begin()

    @classmethod
    def end_loading(cls) -> None:
        """Wait for the compiler."""
        LIBRARY.load()

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Return a token for each row; tokens of probability zero are never sampled."""
        if not self._has_library:
            return self._by_torch.sample(logits, rows)
        if rows.all_greedy:
            return self._take_most_likely(logits)
        return self._sample_tokens(logits, rows, None)

    def sample_fused(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Apply temperature, min-p, top-k and top-p, and sample; the logits are not changed."""
        if not self._has_library:
            return self._by_torch.sample(self._run_processors(logits, rows), rows)
        if self._scratch is None:
            self._scratch = torch.empty(
                self._threads * SCRATCH_PER_TOKEN * self.vocab_size, dtype=torch.float32
            )
        return self._sample_tokens(logits, rows, self._scratch.data_ptr())

    def _run_processors(self, logits: Tensor, rows: SampledRows) -> Tensor:
        """Return the logits after the processors that are not neutral, as far as the host knows."""
        fields = rows.host_fields
        steps = [
            step
            for step in self._fused
            if not fields or not all(step.is_neutral(row) for row in fields)
        ]
        logits = logits.clone() if steps else logits
        for step in steps:
            logits = step.apply(logits, rows)
        return logits

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
        ValueError: The logits have another dtype or size.
    """
    if logits.dtype != torch.float32 or logits.shape[1] != vocab_size:
        raise ValueError(
            f"logits must be float32 [N, {vocab_size}], got {logits.dtype} {list(logits.shape)}"
        )
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    return logits.stride(0), logits


def _indices(indices: Tensor) -> Tensor:
    if indices.dtype != torch.int64:
        raise ValueError(f"slots and positions must be int64, got {indices.dtype}")
    return indices.contiguous()
