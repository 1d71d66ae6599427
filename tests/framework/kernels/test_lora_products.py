"""Adapters in two launches, against one product per token in float64."""

import pytest
import torch
from kernel_device import DEVICE
from torch import Tensor

from quire.kernels.lora_products import expand, output_tiles, shrink

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2**-9}
if DEVICE.type == "cuda":  # Triton's interpreter cannot multiply matrices of bfloat16
    TOLERANCE[torch.bfloat16] = 2**-6
SLICES = [(0, 70), (70, 90), (90, 222)]  # of an output; none a multiple of a piece
MIXED = [0, 2, -1, 2, 1, -1, -1, 0, 2, 2, 1, 0, 0, 2, 1, -1, 2, 0, 1]  # over two tiles


def numbers(*shape: int, seed: int) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(DEVICE)


class Stacks:
    """Stacks of adapters with given ranks, one rank per slice; unused elements are NaN."""

    def __init__(
        self,
        adapters: list[list[int]],
        num_columns: int,
        max_rank: int,
        dtype: torch.dtype,
        slices: list[tuple[int, int]] = SLICES,
    ) -> None:
        self.slices = slices
        rows, outputs = len(slices) * max_rank, slices[-1][1]
        self.a = torch.full(
            (len(adapters), rows, num_columns), torch.nan, dtype=dtype, device=DEVICE
        )
        self.b = torch.full(
            (len(adapters), outputs, max_rank), torch.nan, dtype=dtype, device=DEVICE
        )
        self.spans = torch.zeros(len(adapters), len(slices) + 1, dtype=torch.int32, device=DEVICE)
        self.tiles = torch.tensor(output_tiles(slices), dtype=torch.int32, device=DEVICE)
        for adapter, ranks in enumerate(adapters):
            self.load(adapter, ranks)

    def load(self, adapter: int, ranks: list[int]) -> None:
        num_columns, end = self.a.shape[2], 0
        for number, (rank, (start, stop)) in enumerate(zip(ranks, self.slices, strict=True)):
            seed = 10 * adapter + number
            self.a[adapter, end : end + rank] = numbers(rank, num_columns, seed=seed)
            self.b[adapter, start:stop, :rank] = numbers(stop - start, rank, seed=seed + 100)
            end += rank
            self.spans[adapter, number + 1] = end

    def add(self, out: Tensor, x: Tensor, index: Tensor) -> Tensor:
        expand(out, shrink(x, self.a, self.spans, index), self.b, self.spans, self.tiles, index)
        return out

    def expected(self, out: Tensor, x: Tensor, index: Tensor) -> Tensor:
        """Return the expected outputs, token by token and slice by slice."""
        whole = out.double()
        for token, adapter in enumerate(index.tolist()):
            if adapter < 0:
                continue
            for number, (start, stop) in enumerate(self.slices):
                first, last = self.spans[adapter, number : number + 2].tolist()
                hidden = self.a[adapter, first:last].double() @ x[token].double()
                b = self.b[adapter, start:stop, : last - first].double()
                whole[token, start:stop] += b @ hidden
        return whole


def assert_adds(stacks: Stacks, index: Tensor, dtype: torch.dtype) -> None:
    num_tokens, num_columns = len(index), stacks.a.shape[2]
    x = (numbers(num_tokens, num_columns, seed=7) * num_columns**-0.5).to(dtype)
    out = numbers(num_tokens, stacks.b.shape[1], seed=8).to(dtype)
    expected = stacks.expected(out, x, index)
    before = out.clone()
    stacks.add(out, x, index)
    spread = float(expected.std())
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance * spread)
    assert torch.equal(out[index < 0], before[index < 0])
    assert not torch.equal(out, before)


def indices_of(index: list[int]) -> Tensor:
    return torch.tensor(index, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("num_columns", [40, 130, 1100])
def test_each_token_gets_its_own_adapter(num_columns, dtype):
    adapters = [[4, 0, 16], [1, 3, 2], [16, 16, 16]]
    stacks = Stacks(adapters, num_columns, max_rank=16, dtype=dtype)
    assert_adds(stacks, indices_of(MIXED), dtype)


@pytest.mark.parametrize("rank", [1, 8, 31, 33, 64])
def test_a_rank_may_be_any(rank):
    stacks = Stacks([[rank, 0, rank]], 96, max_rank=64, dtype=torch.float32)
    assert_adds(stacks, indices_of([0, -1, 0]), torch.float32)


def test_one_matrix_and_one_token():
    stacks = Stacks([[4], [8]], 64, max_rank=8, dtype=torch.float32, slices=[(0, 48)])
    assert_adds(stacks, indices_of([1]), torch.float32)


def test_slices_without_an_adapter_stay_exactly_the_same():
    stacks = Stacks([[4, 0, 4]], 40, max_rank=4, dtype=torch.float32)
    x, out = numbers(3, 40, seed=1), numbers(3, 222, seed=2)
    before = out.clone()
    stacks.add(out, x, indices_of([0, 0, 0]))
    assert torch.equal(out[:, 70:90], before[:, 70:90])
    assert not torch.equal(out[:, :70], before[:, :70])


def test_without_any_adapter_nothing_is_written():
    stacks = Stacks([[4, 4, 4]], 40, max_rank=4, dtype=torch.float32)
    x, out = numbers(20, 40, seed=1), numbers(20, 222, seed=2)
    before = out.clone()
    stacks.add(out, x, indices_of([-1] * 20))
    assert torch.equal(out, before)


def test_an_empty_index_adds_nothing():
    stacks = Stacks([[0, 0, 0], [2, 2, 2]], 40, max_rank=4, dtype=torch.float32)
    x, out = numbers(2, 40, seed=1), numbers(2, 222, seed=2)
    before = out.clone()
    stacks.add(out, x, indices_of([0, 1]))
    assert torch.equal(out[0], before[0])
    assert not torch.equal(out[1], before[1])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_token_has_the_same_bits_in_every_company(dtype):
    stacks = Stacks([[4, 0, 16], [1, 3, 2], [16, 16, 16]], 130, max_rank=16, dtype=dtype)
    index = indices_of(MIXED)
    x, out = numbers(len(MIXED), 130, seed=1).to(dtype), numbers(len(MIXED), 222, seed=2).to(dtype)
    whole = stacks.add(out.clone(), x, index)
    for token in (0, 4, 16, 18):
        mine = slice(token, token + 1)
        assert torch.equal(stacks.add(out[mine].clone(), x[mine], index[mine])[0], whole[token])


def test_what_other_tokens_hold_does_not_leak():
    stacks = Stacks([[4, 4, 4], [4, 4, 4]], 40, max_rank=4, dtype=torch.float32)
    x, out = numbers(3, 40, seed=1), numbers(3, 222, seed=2)
    index = indices_of([0, 1, 0])
    expected = stacks.add(out.clone(), x, index)
    x[1] = torch.nan
    spoilt = stacks.add(out.clone(), x, index)
    assert torch.equal(spoilt[[0, 2]], expected[[0, 2]])
    assert spoilt[1].isnan().all()


def test_what_other_adapters_hold_does_not_leak():
    stacks = Stacks([[4, 4, 4], [4, 4, 4]], 40, max_rank=4, dtype=torch.float32)
    x, out, index = numbers(3, 40, seed=1), numbers(3, 222, seed=2), indices_of([0, 1, -1])
    expected = stacks.add(out.clone(), x, index)
    stacks.a[1], stacks.b[1] = torch.nan, torch.nan
    spoilt = stacks.add(out.clone(), x, index)
    assert torch.equal(spoilt[[0, 2]], expected[[0, 2]])
    assert spoilt[1].isnan().all()


def test_rows_may_lie_apart():
    stacks = Stacks([[4, 2, 1]], 40, max_rank=4, dtype=torch.float32)
    x, out = numbers(4, 100, seed=1)[:, :40], numbers(4, 300, seed=2)[:, 10:232]
    index = indices_of([0, -1, 0, 0])
    expected = stacks.expected(out, x, index)
    torch.testing.assert_close(stacks.add(out, x, index).double(), expected, rtol=1e-5, atol=1e-4)


def test_pieces_do_not_cross_from_one_slice_to_the_next():
    assert output_tiles([(0, 70), (70, 134)]) == [(0, 64, 0), (64, 70, 0), (70, 134, 1)]
