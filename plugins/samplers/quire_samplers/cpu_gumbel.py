"""The draw by Gumbel noise for CPUs: `gumbel`'s noise and filters, in C++ that looks at a row once.

For the same seed it draws the tokens that `gumbel` draws, as far as rounding lets it. Where the
library cannot be compiled, the steps that it stands for run one by one, and `categorical` draws:
the same distribution, other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Structure, byref, c_int, c_long, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from quire.interfaces.sampling import LogitsProcessor, SampledRows, Sampler
from quire.native.library import NativeLibrary, NativeUnavailableError
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
LIBRARY = NativeLibrary("draws", SOURCE, FUNCTIONS)
ABSORBED: tuple[type[LogitsProcessor], ...] = (Temperature, MinP, TopKTopP)  # in their order
ROOM_PER_TOKEN = 4  # numbers that the filters need, a thread


class _Columns(Structure):
    """The request fields, as the library reads them: a pointer each."""

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
    def of(cls, columns: Mapping[str, Tensor]) -> _Columns:
        """Point to the columns.

        Raises:
            ValueError: One has another type, or is not in one piece.
        """
        for name, dtype in cls.types.items():
            column = columns[name]
            if column.dtype != dtype or not column.is_contiguous():
                raise ValueError(
                    f"column {name} must be {dtype} in one piece, got {column.dtype} with strides "
                    f"{column.stride()}"
                )
        return cls(*[columns[name].data_ptr() for name in cls.types])


class CpuGumbel(Sampler):
    """Reads `temperature`: rows with 0 take the likeliest token, others draw by probability.

    It can do `temperature`, `min_p` and `top_k_top_p` itself, and then draws the token that it
    would draw after them.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        super().__init__(vocab_size, device)
        self._by_torch = Categorical(vocab_size, device)
        self._fused = [step(vocab_size, device) for step in ABSORBED]
        self._threads = torch.get_num_threads()
        self._room: Tensor | None = None
        self._has_library = device.type == "cpu"
        if self._has_library:
            try:
                library = LIBRARY.load()
            except NativeUnavailableError:  # the library has logged why
                self._has_library = False
            else:
                self._likeliest, self._sample = library.likeliest_tokens, library.sample_tokens

    @classmethod
    def begin_loading(cls) -> None:
        """Compile the library beside the loading of weights."""
        LIBRARY.begin()

    @classmethod
    def end_loading(cls) -> None:
        """Wait for the library."""
        LIBRARY.load()

    def is_neutral(self, fields: Mapping[str, Any]) -> bool:
        """Whether the request is greedy."""
        return bool(fields["temperature"] == 0)

    def sample(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Return a token for each row; one of probability zero is never drawn."""
        if not self._has_library:
            return self._by_torch.sample(logits, rows)
        if rows.all_greedy:
            return self._take_likeliest(logits)
        return self._sample_tokens(logits, rows, None)

    def sample_fused(self, logits: Tensor, rows: SampledRows) -> Tensor:  # [N, V] -> [N] int64
        """Do temperature, min-p, top-k and top-p, and draw; the logits stay as they are."""
        if not self._has_library:
            return self._by_torch.sample(self._after_steps(logits, rows), rows)
        if self._room is None:
            self._room = torch.empty(
                self._threads * ROOM_PER_TOKEN * self.vocab_size, dtype=torch.float32
            )
        return self._sample_tokens(logits, rows, self._room.data_ptr())

    def _after_steps(self, logits: Tensor, rows: SampledRows) -> Tensor:
        """Return the logits after the steps that change some row, as far as the host knows."""
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

    def _take_likeliest(self, logits: Tensor) -> Tensor:
        stride, logits = _row_stride(logits, self.vocab_size)
        num_rows = len(logits)
        sampled = torch.empty(num_rows, dtype=torch.int64)
        self._likeliest(
            logits.data_ptr(), stride, num_rows, self.vocab_size, sampled.data_ptr(), self._threads
        )
        return sampled

    def _sample_tokens(self, logits: Tensor, rows: SampledRows, room: int | None) -> Tensor:
        stride, logits = _row_stride(logits, self.vocab_size)
        num_rows = len(logits)
        sampled = torch.empty(num_rows, dtype=torch.int64)
        columns = _Columns.of(rows.columns)
        slots, positions = _indices(rows.slots), _indices(rows.positions)
        self._sample(
            logits.data_ptr(), stride, num_rows, self.vocab_size,
            slots.data_ptr(), positions.data_ptr(), byref(columns), room,
            sampled.data_ptr(), self._threads,
        )  # fmt: skip
        return sampled


def _row_stride(logits: Tensor, vocab_size: int) -> tuple[int, Tensor]:
    """Return how far apart rows lie, and the logits with each row in one piece.

    Raises:
        ValueError: They have another type or size.
    """
    if logits.dtype != torch.float32 or logits.shape[1] != vocab_size:
        raise ValueError(
            f"logits must be float32 [N, {vocab_size}], got {logits.dtype} {list(logits.shape)}"
        )
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    return logits.stride(0), logits


def _indices(numbers: Tensor) -> Tensor:
    if numbers.dtype != torch.int64:
        raise ValueError(f"slots and positions must be int64, got {numbers.dtype}")
    return numbers.contiguous()
