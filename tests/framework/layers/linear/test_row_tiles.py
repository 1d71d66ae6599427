"""A row's product has the same bits at every index; methods that cannot ensure that are refused."""

from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT
from torch import nn
from torch.nn.functional import linear

from quire.errors import RefusedError
from quire.interfaces.lora import AdapterBatch, AdapterModule
from quire.interfaces.quantization import LinearMethod
from quire.layers import (
    ColumnParallelLinear,
    GeluTanhAndMul,
    LMHead,
    MergedColumnParallelLinear,
    QKNorm,
    RMSNorm,
    RowParallelLinear,
    SiluAndMul,
    TensorParallelGroup,
)
from quire.layers.linear.prepacked import Prepacked
from quire.layers.linear.row_tiles import (
    LARGE_TILE,
    SMALL_TILE,
    InTiles,
    in_tiles,
    largest_tile,
    random_rows,
    same_bits,
)

INVARIANT = replace(CONTEXT, batch_invariant=True)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NUM_ROWS = 300
COUNTS = (*range(1, 71), 127, 128, 129, 144, 160, 255, 256, 300)


@pytest.fixture(autouse=True, params=[1, pytest.param(2, marks=pytest.mark.slow)])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_rows_are_independent(function, x: torch.Tensor) -> None:
    """Any number of rows, from the beginning and from the end, backwards, and one alone."""
    whole = function(x)
    for count in COUNTS:
        assert same_bits(function(x[:count].clone()), whole[:count]), f"the first {count}"
        assert same_bits(function(x[-count:].clone()), whole[-count:]), f"the last {count}"
        assert same_bits(function(x[count - 1 : count].clone()), whole[count - 1 : count])
    assert same_bits(function(x.flip(0)), whole.flip(0)), "backwards"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(96, 64), (33, 100), (1, 7), (700, 24), (64, 1000)])
def test_a_linear_layer_treats_rows_alike(dtype, rows, columns):
    prepack = Prepacked.is_available(dtype, CONTEXT.device)
    context = replace(INVARIANT, dtype=dtype, prepack=prepack)
    layer = ColumnParallelLinear("up", columns, rows, bias=True, context=context)
    layer.load_weight("weight", numbers(rows, columns), "up")
    layer.load_weight("bias", numbers(rows, seed=1), "up")
    layer.finish_loading()
    x = numbers(NUM_ROWS, columns, seed=2).to(dtype)
    assert_rows_are_independent(layer, x)
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    expected = linear(x.float(), numbers(rows, columns), numbers(rows, seed=1))
    torch.testing.assert_close(layer(x).float(), expected, rtol=tolerance, atol=4 * tolerance)


def test_a_head_treats_rows_alike():
    context = replace(INVARIANT, prepack=Prepacked.is_available(torch.float32, CONTEXT.device))
    head = LMHead(1003, 48, context)
    head.load_weight("weight", numbers(1003, 48), "lm_head")
    head.finish_loading()
    assert_rows_are_independent(head, numbers(NUM_ROWS, 48, seed=1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [5, 64, 101, 4096])
@pytest.mark.parametrize("activation", [SiluAndMul, GeluTanhAndMul])
def test_activations_treat_rows_alike(activation, width, dtype):
    layer = activation(replace(INVARIANT, dtype=dtype))
    gate_up = (numbers(NUM_ROWS, 2 * width) * 3).to(dtype)
    assert_rows_are_independent(layer, gate_up)
    plain = activation(CONTEXT)(gate_up.float())
    torch.testing.assert_close(
        layer(gate_up).float(), plain, rtol=1e-5 if dtype == torch.float32 else 0.02, atol=1e-3
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [7, 64, 1000, 4096])
def test_norms_treat_rows_alike(size, dtype):
    norm = RMSNorm(size, 1e-6, replace(INVARIANT, dtype=dtype))
    norm.load_weight("weight", numbers(size), "norm")
    x = numbers(NUM_ROWS, size, seed=1).to(dtype)
    assert_rows_are_independent(lambda rows: norm(rows, rows * 2)[0], x)


def test_norms_of_heads_treat_rows_alike():
    norm = QKNorm(4, 2, 40, 1e-6, INVARIANT)
    norm.load_weight("weight", numbers(40), "q_norm")
    norm.load_weight("weight", numbers(40, seed=1), "k_norm")
    qkv = numbers(NUM_ROWS, 8, 40, seed=2)
    assert_rows_are_independent(lambda rows: norm(rows[:, :6]), qkv)


def adapted(ranks: dict[str, int]) -> MergedColumnParallelLinear:
    parts = {"gate": 40, "up": 24}
    layer = MergedColumnParallelLinear("m", 32, parts, bias=False, context=INVARIANT)
    for seed, (part, rows) in enumerate(parts.items()):
        layer.load_weight("weight", numbers(rows, 32, seed=seed), part)
    layer.finish_loading()
    layer.enable_lora(2, 16)
    modules = {
        part: AdapterModule(numbers(rank, 32, seed=5), numbers(parts[part], rank, seed=6), 0.5)
        for part, rank in ranks.items()
    }
    layer.set_adapter(1, modules)
    return layer


@pytest.mark.parametrize("ranks", [{"gate": 4, "up": 16}, {"up": 1}, {"gate": 7}])
def test_adapted_rows_are_alike_in_every_company(ranks):
    layer, x = adapted(ranks), numbers(NUM_ROWS, 32, seed=9)
    every = AdapterBatch(torch.ones(NUM_ROWS), ((1, torch.arange(NUM_ROWS)),), covers_all=True)
    whole = layer(x, every)
    rng = torch.Generator().manual_seed(0)
    for count in (1, 2, 15, 16, 17, 70, 129, 200):
        rows = torch.randperm(NUM_ROWS, generator=rng)[:count].sort().values
        index = torch.zeros(NUM_ROWS).index_fill_(0, rows, 1)
        some = layer(x, AdapterBatch(index, ((1, rows),), covers_all=False))
        assert same_bits(some[rows], whole[rows])
        alone = AdapterBatch(torch.ones(count), ((1, torch.arange(count)),), covers_all=True)
        assert same_bits(layer(x[rows], alone), whole[rows])
    assert not torch.allclose(whole, layer(x))


def test_tiles_give_the_whole_product_in_order():
    seen = []

    def product(rows):
        seen.append(len(rows))
        return rows * 2

    x = numbers(150, 3)
    assert torch.equal(in_tiles(product, x, LARGE_TILE), x * 2)
    assert seen == [128, 16, 16]
    assert in_tiles(product, x[:0]).shape == (0, 3)


@pytest.mark.parametrize("columns", [1, 24])
@pytest.mark.parametrize("offset", [1, 3, 5, 8])
def test_where_rows_lie_in_memory_does_not_matter(offset, columns):
    weight, x = numbers(columns, 7), numbers(32, 7, seed=1)
    moved = torch.empty(32 * 7 + offset)[offset:].view(32, 7).copy_(x)
    expected = in_tiles(lambda rows: linear(rows, weight), x)
    assert same_bits(in_tiles(lambda rows: linear(rows, weight), moved), expected)


def by_place(rows):
    """A library that adds up otherwise in the second half of a tile."""
    return torch.cat((rows[:8] @ WEIGHT, (rows[8:].double() @ WEIGHT.double() * 1.0000001).float()))


def by_neighbour(rows):
    return rows @ WEIGHT + rows.abs().sum() * 1e-6


def by_number(rows):
    """A library that chooses another kernel for many rows."""
    return rows @ WEIGHT if len(rows) == SMALL_TILE else (rows.double() @ WEIGHT.double()).float()


def alike(rows):
    return (rows.unsqueeze(2) * WEIGHT).sum(1)


WEIGHT = numbers(64, 48, seed=4)


@pytest.mark.parametrize(
    ("product", "tile"),
    [(by_place, None), (by_neighbour, None), (by_number, SMALL_TILE), (alike, LARGE_TILE)],
)
def test_the_trial_notices_what_a_library_does(product, tile):
    assert largest_tile(product, random_rows(64, torch.float32, CONTEXT.device)) == tile


class NeighbourlyWeight(LinearMethod):
    """Lets each row feel the others."""

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        weight = nn.Parameter(torch.ones(out_features, in_features), requires_grad=False)
        layer.register_parameter("weight", weight)

    def finish_loading(self, layer: nn.Module) -> None:
        pass

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return by_neighbour(x[:, :1].expand(-1, 64))


def test_a_method_that_cannot_promise_it_is_refused_by_name():
    method = InTiles(NeighbourlyWeight(), "mlp.up", torch.float32, CONTEXT.device)
    layer = nn.Module()
    method.create_weights(layer, 48, 64)
    with pytest.raises(RefusedError, match=r"mlp\.up in float32.*--batch-invariant"):
        method.finish_loading(layer)


class Promising(NeighbourlyWeight):
    """Declares that it is batch-invariant, so it is neither tested nor tiled."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def finish_loading(self, layer: nn.Module) -> None:
        self.is_batch_invariant = True

    def apply(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        self.counts.append(len(x))
        return x

    def rows(self, layer: nn.Module, token_ids: torch.Tensor) -> torch.Tensor:
        return token_ids * 2


def test_a_method_that_keeps_the_promise_itself_is_not_tiled():
    inner, layer = Promising(), nn.Module()
    method = InTiles(inner, "mlp.up", torch.float32, CONTEXT.device)
    method.create_weights(layer, 48, 64)
    method.finish_loading(layer)
    x = numbers(150, 64)
    assert torch.equal(method.apply(layer, x), x)
    assert torch.equal(method.apply_with_bias(layer, x.clone(), torch.ones(64)), x + 1)
    assert inner.counts == [150, 150]
    assert torch.equal(method.rows(layer, torch.tensor([4])), torch.tensor([8]))


class Ranks(TensorParallelGroup):
    """This device and two others with known parts."""

    rank, size = 0, 3

    def __init__(self, others):
        self.others = others

    def all_reduce(self, x):
        raise AssertionError("the order of this sum is the transport's")

    def all_gather(self, x, dim=-1):
        return torch.cat((x, *(other[: len(x)] for other in self.others)), dim)


def test_the_parts_of_several_devices_are_added_in_the_order_of_ranks():
    others = [numbers(5, 6, seed=7) * 1e4, numbers(5, 6, seed=8)]
    context = replace(INVARIANT, tp=Ranks(others))
    layer = RowParallelLinear("o_proj", 9, 6, bias=False, context=context)
    layer.load_weight("weight", numbers(6, 9), "o_proj")
    layer.finish_loading()
    x = numbers(5, 3, seed=1)
    own = in_tiles(lambda rows: linear(rows, numbers(6, 9)[:, :3].contiguous()), x)
    assert same_bits(layer(x), own + others[0] + others[1])


@pytest.mark.parametrize("num_good", [1, 2, 9, 15])
def test_a_row_is_tested_at_every_index_of_a_tile(num_good):
    """At some indices behind its own, each row has its own bits, and at the next one others."""
    few = random_rows(4, torch.float32, CONTEXT.device)[:SMALL_TILE]

    def product(rows):
        out = rows.clone()
        for index, row in enumerate(rows[:SMALL_TILE]):
            home = (few == row).all(1).nonzero().flatten().tolist()
            if home and (index - home[0]) % SMALL_TILE >= num_good:
                out[index] += 1
        return out

    assert largest_tile(product, random_rows(4, torch.float32, CONTEXT.device)) is None


def test_a_row_is_tried_beside_others_than_its_own_neighbours():
    def product(rows):
        return rows + (rows.abs().sum(1) == 0).sum()  # zeros beside it change a row

    assert largest_tile(product, random_rows(4, torch.float32, CONTEXT.device)) is None
    assert largest_tile(lambda rows: rows * 2, random_rows(4, torch.float32, CONTEXT.device)) == (
        LARGE_TILE
    )


def test_the_inner_method_is_given_the_checkpoints_dtype():
    class Expecting(Prepacked):
        def expect(self, layer, dtype):
            expected.append(dtype)

    expected: list[torch.dtype] = []
    method = InTiles(Expecting(torch.float32, CONTEXT.device), "up", torch.float32, CONTEXT.device)
    layer = nn.Module()
    method.create_weights(layer, 2, 3)
    method.load(layer, torch.ones(2, 3, dtype=torch.bfloat16), 0)
    assert torch.equal(layer.get_parameter("weight"), torch.ones(2, 3))
    assert expected == [torch.bfloat16]
