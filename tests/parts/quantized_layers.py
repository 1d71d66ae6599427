"""Writers of quantized layers, by the published layouts, element by element.

Each returns the tensors of one linear layer by their suffix, and the weight `[N, K]` that they
stand for, computed from the integers before they are packed. They share no code with the readers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class QuantizedLayer:
    """Tensors by suffix, and their meaning."""

    tensors: dict[str, Tensor]
    weight: Tensor  # [N, K] float32


@dataclass(frozen=True)
class Grouped:
    """Integers with a scale and a zero point for each group of inputs."""

    codes: Tensor  # [N, K] int64
    scales: Tensor  # [N, G] float16
    zeros: Tensor  # [N, G] int64
    groups: Tensor  # [K] int64

    @property
    def weight(self) -> Tensor:
        """The weight `[N, K]`, by the definition."""
        exact = self.codes - self.zeros[:, self.groups]
        return (exact.double() * self.scales.double()[:, self.groups]).float()


def grouped(
    weight: Tensor,  # [N, K]
    bits: int,
    group_size: int,
    *,
    symmetric: bool,
    groups: Tensor | None = None,
) -> Grouped:
    """Quantize to the nearest integers, with a range that contains zero."""
    columns = weight.shape[1]
    if groups is None:
        groups = torch.arange(columns) // group_size
    highest, middle = 2**bits - 1, 2 ** (bits - 1)
    scales, zeros = [], []
    for group in range(int(groups.max()) + 1):
        own = weight[:, groups == group]
        if symmetric:
            scale = (own.abs().amax(1) / (middle - 1)).half()
            zero = torch.full_like(scale, middle)
        else:
            low, high = own.amin(1).clamp(max=0), own.amax(1).clamp(min=0)
            scale = ((high - low) / highest).half()
            zero = (-low / scale).round().clamp(0, highest)
        scales.append(scale)
        zeros.append(zero.long())
    scale, zero = torch.stack(scales, 1), torch.stack(zeros, 1)
    codes = (weight / scale.float()[:, groups]).round().long() + zero[:, groups]
    return Grouped(codes.clamp(0, highest), scale, zero, groups)


def packed_stream(
    values: Tensor, bits: int
) -> Tensor:  # [n, count] -> [n, count * bits / 32] int32
    """Pack each row as a stream of bits, the lowest first."""
    rows = []
    for row in values.tolist():
        number = sum(value << (bits * i) for i, value in enumerate(row))
        rows.append([number >> (32 * i) & 0xFFFFFFFF for i in range(len(row) * bits // 32)])
    return signed(torch.tensor(rows))


def signed(words: Tensor) -> Tensor:
    """Return unsigned words of 32 bits as int32."""
    return torch.where(words >= 2**31, words - 2**32, words).int()


def gptq(
    weight: Tensor,
    bits: int = 4,
    group_size: int = 32,
    *,
    symmetric: bool = True,
    less_one: bool = True,
    groups: Tensor | None = None,
) -> QuantizedLayer:
    """Return a layer as AutoGPTQ stores it (`less_one`), or as gptq_v2 is stored."""
    made = grouped(weight, bits, group_size, symmetric=symmetric, groups=groups)
    stored = (made.zeros - int(less_one)) & (2**bits - 1)
    tensors = {
        "qweight": packed_stream(made.codes, bits).T.contiguous(),
        "qzeros": packed_stream(stored.T, bits),
        "scales": made.scales.T.contiguous(),
        "g_idx": made.groups.int(),
    }
    return QuantizedLayer(tensors, made.weight)


def awq(weight: Tensor, group_size: int = 32) -> QuantizedLayer:
    """Return a layer as AutoAWQ stores it."""
    made = grouped(weight, 4, group_size, symmetric=False)
    tensors = {
        "qweight": _awq_words(made.codes.T),
        "qzeros": _awq_words(made.zeros.T),
        "scales": made.scales.T.contiguous(),
    }
    return QuantizedLayer(tensors, made.weight)


def _awq_words(values: Tensor) -> Tensor:  # [n, N] -> [n, N / 8]
    words = torch.zeros(len(values), values.shape[1] // 8, dtype=torch.int64)
    for field, output in enumerate(AWQ_ORDER):
        words |= values[:, output::8] << (4 * field)
    return signed(words)
