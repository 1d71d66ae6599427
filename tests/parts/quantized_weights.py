"""Random quantized weights of the formats that checkpoints have."""

import torch
from torch import Tensor

from quire.interfaces.quantized_weight import QuantizedWeight
from quire_quantizations.number_tables import e2m1_table

NF4 = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
])  # fmt: skip
FLOAT8 = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
TABLES = {
    "int4": torch.arange(16.0) - 8,
    "uint4": torch.arange(16.0),
    "int2": torch.arange(4.0),
    "int8": torch.arange(256.0) - 128,
    "nf4": NF4,
    "e2m1": e2m1_table(),
    "e4m3": FLOAT8,
}
NUMBERS = [code for code in range(256) if code & 0x7F != 0x7F]  # of e4m3


def random_weight(
    table: str,
    shape: tuple[int, int],
    group_size: int,
    *,
    zeros: str = "none",
    groups: Tensor | None = None,
    seed: int = 0,
) -> QuantizedWeight:
    """Return a weight whose elements are around one.

    Args:
        table: Name in `TABLES`.
        shape: `[N, K]`.
        group_size: Number of inputs of a group.
        zeros: "none", "integers" or "floats": offsets.
        groups: Group of each input.
        seed: Seed of all numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    outputs, inputs = shape
    num_groups = -(-inputs // group_size) if groups is None else int(groups.max()) + 1
    values = TABLES[table]
    usable = torch.tensor(NUMBERS if table == "e4m3" else range(len(values)), dtype=torch.uint8)
    codes = usable[torch.randint(len(usable), shape, generator=generator)]
    spread = float(values[usable.long()].std())
    scales = torch.rand(outputs, num_groups, generator=generator).add_(0.5).div_(spread).half()
    offsets = None
    if zeros == "integers":
        zero = torch.randint(len(values), (outputs, num_groups), generator=generator)
        offsets = -zero.float() * scales.float()
    elif zeros == "floats":
        offsets = torch.randn(outputs, num_groups, generator=generator)
    return QuantizedWeight(codes, scales.float(), values, group_size, offsets, groups)
