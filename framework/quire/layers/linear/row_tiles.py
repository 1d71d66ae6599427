"""Batch-invariant matrix products: rows are multiplied in tiles of a fixed shape.

A matrix library chooses its kernel by the number of rows, and kernels sum in different orders, so
a row's result alone and in a batch can differ in its last bit. With tiles of a fixed shape the
kernel is always the same. A row's result must also not depend on its index in the tile, nor on the
other rows. That is a property of the library on this machine; it is tested for each weight at load.

    T = 150 rows   [ 128 | 16 | 6 and 10 of zeros ]

Measured in float32 on one core of a Zen 5 against one product of all rows: 512 rows take 1.01 to
1.1 times as long. One row takes as long as 16, which is 2 to 3 times as long as the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from quire.errors import RefusedError
from quire.interfaces.quantization import GroupedProduct, GroupedWeight, LinearMethod
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.layers.seeded_generator import seeded_generator

SMALL_TILE = 16  # rows
LARGE_TILE = 128
ALIGNMENT = 64  # bytes, as torch allocates; multiples of 16 rows keep it
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Product = Callable[[Tensor], Tensor]  # [n, in] -> [n, out]


def in_tiles(product: Product, x: Tensor, large: int = SMALL_TILE) -> Tensor:
    """Return `product(x)`, computed in tiles of `large` and of 16 rows.

    Args:
        product: Function that computes each row independently.
        x: `[T, in]`.
        large: Number of rows of the first tiles, a multiple of 16.
    """
    num_rows = len(x)
    num_missing = -num_rows % SMALL_TILE
    padded = functional.pad(x, (0, 0, 0, num_missing)) if num_missing else x.contiguous()
    if padded.data_ptr() % ALIGNMENT:  # MKL's product with one column depends on it
        padded = padded.clone()
    if len(padded) == SMALL_TILE:
        return product(padded)[:num_rows]
    parts = [product(padded[start:stop]) for start, stop in _tiles(len(padded), large)]
    return torch.cat(parts)[:num_rows] if parts else product(padded)


def largest_tile(product: Product, sample: Tensor) -> int | None:
    """Return the largest tile in which a row's result does not depend on its index in the tile.

    Args:
        product: Function as for `in_tiles`.
        sample: `[128, in]`, random numbers.

    Returns:
        128 or 16; None if a row's bits depend on its index even in a tile of 16 rows.
    """
    few = sample[:SMALL_TILE].contiguous()
    expected = product(few)
    for shift in range(1, SMALL_TILE):
        if not same_bits(product(few.roll(shift, 0)), expected.roll(shift, 0)):
            return None
    alone = torch.zeros_like(few)
    alone[0] = few[0]
    if not same_bits(product(alone)[0], expected[0]):
        return None
    small = in_tiles(product, sample)
    return LARGE_TILE if same_bits(product(sample.contiguous()), small) else SMALL_TILE


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are bitwise equal; NaN equals itself."""
    bits = _BITS[one.dtype.itemsize]
    return torch.equal(one.contiguous().view(bits), other.contiguous().view(bits))


def random_rows(in_features: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the rows that weights are tested with, `[128, in]`; always the same."""
    rows = torch.randn(LARGE_TILE, in_features, generator=seeded_generator(0))
    return rows.to(device=device, dtype=dtype)


class InTiles(LinearMethod):
    """Another method's weight, multiplied in tiles unless that method is batch-invariant itself.

    Args:
        method: Method that stores the weight.
        name: Module path of the layer for errors.
        dtype: Dtype of the rows.
        device: Device of the rows.
    """

    def __init__(
        self, method: LinearMethod, name: str, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.method = method
        self.name = name
        self.dtype = dtype
        self.device = device
        self.in_features = 0
        self.large = SMALL_TILE
        self.has_rows = method.has_rows

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        """Register the parameters of the other method."""
        self.in_features = in_features
        self.method.create_weights(layer, out_features, in_features)

    def load(self, layer: nn.Module, weight: Tensor, first_row: int) -> None:
        """Pass the slice on to the other method."""
        self.method.load(layer, weight, first_row)

    def load_quantized(self, layer: nn.Module, weight: QuantizedWeight, first_row: int) -> None:
        """Pass the slice on to the other method."""
        self.method.load_quantized(layer, weight, first_row)

    def finish_loading(self, layer: nn.Module) -> None:
        """Repack by the other method, and find the largest tile that is batch-invariant.

        Raises:
            RefusedError: The products depend on a row's index in any tile.
        """
        self.method.finish_loading(layer)
        self.is_batch_invariant = self.method.is_batch_invariant
        if self.is_batch_invariant:
            return
        in_features = self.in_features or layer.get_parameter("weight").shape[1]
        sample = random_rows(in_features, self.dtype, self.device)
        large = largest_tile(lambda x: self.method.apply(layer, x), sample)
        if large is None:
            raise refusal(f"the product of {self.name}", self.dtype)
        self.large = large

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Compute `x @ weight.T`."""
        if self.is_batch_invariant:
            return self.method.apply(layer, x)
        return in_tiles(lambda rows: self.method.apply(layer, rows), x, self.large)

    def apply_with_bias(self, layer: nn.Module, x: Tensor, bias: Tensor) -> Tensor:
        """Compute `x @ weight.T + bias`."""
        if self.is_batch_invariant:
            return self.method.apply_with_bias(layer, x, bias)
        return self.apply(layer, x).add_(bias)

    def rows(self, layer: nn.Module, token_ids: Tensor) -> Tensor:
        """Return rows of the weight."""
        return self.method.rows(layer, token_ids)

    def grouped_product(self, weights: Sequence[GroupedWeight]) -> GroupedProduct | None:
        """Return the other method's product if it is batch-invariant."""
        if not self.is_batch_invariant:
            return None
        inner = [
            replace(weight, method=weight.method.method)
            for weight in weights
            if isinstance(weight.method, InTiles)
        ]
        return self.method.grouped_product(inner)


def refusal(what: str, dtype: torch.dtype) -> RefusedError:
    """Return the error that batch-invariant mode is not possible on this machine."""
    name = str(dtype).removeprefix("torch.")
    return RefusedError(
        f"batch-invariant mode is not possible: with the matrix library of this machine, {what} in "
        f"{name} gives a row different bits at different positions of the batch; try another "
        "--dtype or another number of --threads, or leave out --batch-invariant"
    )


def _tiles(num_rows: int, large: int) -> Iterator[tuple[int, int]]:
    """Yield the tiles of a multiple of 16 rows, as (start, stop)."""
    start = 0
    while start < num_rows:
        size = large if num_rows - start >= large else SMALL_TILE
        yield start, start + size
        start += size
