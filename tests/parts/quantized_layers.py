"""Writers of quantized layers, by the published layouts, element by element.

Each returns the tensors of one linear layer by their suffix, and the weight `[N, K]` that they
stand for, computed from the integers before they are packed. They share no code with the readers.
"""

import json
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


def pack_quantized(
    weight: Tensor, bits: int = 4, group_size: int = 32, *, symmetric: bool = True
) -> QuantizedLayer:
    """Return a layer as compressed-tensors packs integers."""
    made = grouped(weight, bits, group_size, symmetric=symmetric)
    tensors = {
        "weight_packed": padded_stream(made.codes, bits),
        "weight_scale": made.scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = padded_stream(made.zeros.T, bits).T.contiguous()
    return QuantizedLayer(tensors, made.weight)


def padded_stream(values: Tensor, bits: int) -> Tensor:
    """Pack each row as a stream of whole words."""
    missing = -values.shape[1] % 32
    packed = packed_stream(torch.nn.functional.pad(values, (0, missing)), bits)
    return packed[:, : -(-values.shape[1] * bits // 32)].contiguous()


def int_quantized(
    weight: Tensor, group_size: int | None = None, *, symmetric: bool = True
) -> QuantizedLayer:
    """Return a layer as compressed-tensors stores int8."""
    made = grouped(weight, 8, group_size or weight.shape[1], symmetric=symmetric)
    tensors = {"weight": (made.codes - 128).char(), "weight_scale": made.scales}
    if not symmetric:
        tensors["weight_zero_point"] = (made.zeros - 128).char()
    return QuantizedLayer(tensors, made.weight)


def float_quantized(weight: Tensor) -> QuantizedLayer:
    """Return a layer as compressed-tensors stores float8, with a scale for each output."""
    scale = (weight.abs().amax(1, keepdim=True) / 448).bfloat16()
    codes = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    tensors = {"weight": codes, "weight_scale": scale, "input_scale": torch.ones(1)}
    return QuantizedLayer(tensors, codes.float() * scale.float())


NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


def nf4(weight: Tensor, block_size: int = 64, *, nested: bool = False) -> QuantizedLayer:
    """Return a layer as bitsandbytes stores it; `nested` scales are codes of a table."""
    table = torch.tensor(NF4)
    flat = weight.flatten()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % block_size)).view(-1, block_size)
    scales = blocks.abs().amax(1)
    state = {"quant_type": "nf4", "blocksize": block_size, "dtype": "float32",
             "shape": list(weight.shape)}  # fmt: skip
    tensors = {"weight.quant_map": table, "weight.absmax": scales}
    if nested:
        values = torch.linspace(-1, 1, 256)
        offset = float(scales.mean())
        largest = torch.stack([part.abs().amax() for part in (scales - offset).split(256)])
        factors = largest.repeat_interleave(256)[: len(scales)]
        codes = ((scales - offset) / factors).unsqueeze(1).sub(values).abs().argmin(1)
        scales = values[codes] * factors + offset
        tensors |= {"weight.absmax": codes.byte(), "weight.nested_absmax": largest,
                    "weight.nested_quant_map": values}  # fmt: skip
        state |= {"nested_blocksize": 256, "nested_offset": offset, "nested_dtype": "float32"}
    codes = (blocks / scales.unsqueeze(1)).unsqueeze(-1).sub(table).abs().argmin(-1)
    found = (table[codes] * scales.unsqueeze(1)).flatten()[: len(flat)].view(weight.shape)
    kept = codes.flatten()[: len(flat)].view(-1, 2)
    tensors["weight"] = (kept[:, 0] << 4 | kept[:, 1]).byte().unsqueeze(1)
    content = json.dumps(state).encode()
    tensors["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(list(content)).byte()
    return QuantizedLayer(tensors, found)


def llm_int8(weight: Tensor) -> QuantizedLayer:
    """Return a layer as bitsandbytes stores int8."""
    scales = weight.abs().amax(1)
    codes = (weight / scales.unsqueeze(1) * 127).round().char()
    tensors = {"weight": codes, "SCB": scales, "weight_format": torch.tensor(0).byte()}
    return QuantizedLayer(tensors, codes.float() * (scales / 127).unsqueeze(1))
