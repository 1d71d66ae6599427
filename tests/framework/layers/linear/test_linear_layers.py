"""Linear layers: merged matrices, shards of several devices, quantization and LoRA."""

from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT
from torch import Tensor, nn

from quire.errors import RefusedError, SettingsError
from quire.interfaces.lora import AdapterBatch, AdapterModule
from quire.interfaces.quantization import LinearMethod, Quantization
from quire.layers import (
    ColumnParallelLinear,
    LayerContext,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    TensorParallelGroup,
)

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


class OneOf(TensorParallelGroup):
    """A rank without peers: results are this device's own part."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return x


def rank_of(rank: int, size: int) -> LayerContext:
    return replace(CONTEXT, tp=OneOf(rank, size))


def matrix(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def qkv(context: LayerContext, num_kv_heads: int = 2) -> QKVParallelLinear:
    layer = QKVParallelLinear("a.qkv_proj", 8, 4, num_kv_heads, 2, bias=True, context=context)
    for seed, (part, heads) in enumerate((("q", 4), ("k", num_kv_heads), ("v", num_kv_heads))):
        layer.load_weight("weight", matrix(heads * 2, 8, seed), f"{part}_proj")
        layer.load_weight("bias", matrix(heads * 2, 1, 10 + seed)[:, 0], f"{part}_proj")
    return layer


def whole_qkv(num_kv_heads: int = 2) -> list[Tensor]:
    """What q_proj, k_proj and v_proj give, each by itself."""
    heads = (4, num_kv_heads, num_kv_heads)
    return [
        nn.functional.linear(X, matrix(n * 2, 8, seed), matrix(n * 2, 1, 10 + seed)[:, 0])
        for seed, n in enumerate(heads)
    ]


def test_qkv_is_the_three_projections_side_by_side():
    torch.testing.assert_close(qkv(CONTEXT)(X), torch.cat(whole_qkv(), 1))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_device_has_its_heads_of_each_projection(rank):
    q, k, v = whole_qkv()
    mine = torch.cat([q.chunk(2, 1)[rank], k.chunk(2, 1)[rank], v.chunk(2, 1)[rank]], 1)
    torch.testing.assert_close(qkv(rank_of(rank, 2))(X), mine)


@pytest.mark.parametrize(("rank", "kv_head"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_with_fewer_kv_heads_than_devices_neighbours_repeat_them(rank, kv_head):
    q, k, v = whole_qkv()
    mine = [q.chunk(4, 1)[rank], k.chunk(2, 1)[kv_head], v.chunk(2, 1)[kv_head]]
    torch.testing.assert_close(qkv(rank_of(rank, 4))(X), torch.cat(mine, 1))


def test_merged_matrices_of_different_sizes():
    layer = MergedColumnParallelLinear("m", 8, {"a": 4, "b": 6}, bias=False, context=rank_of(1, 2))
    layer.load_weight("weight", matrix(6, 8, 2), "b")
    layer.load_weight("weight", matrix(4, 8, 1), "a")
    expected = torch.cat([X @ matrix(4, 8, 1)[2:].T, X @ matrix(6, 8, 2)[3:].T], 1)
    torch.testing.assert_close(layer(X), expected)


def test_a_column_layer_has_the_name_of_its_matrix():
    layer = ColumnParallelLinear("mlp.up", 8, 4, bias=False, context=CONTEXT)
    assert layer.checkpoint_shape("weight", "up") == (4, 8)


def test_shares_of_a_row_layer_add_up():
    total = torch.zeros(5, 6)
    for rank in range(2):
        layer = RowParallelLinear("o_proj", 8, 6, bias=False, context=rank_of(rank, 2))
        layer.load_weight("weight", matrix(6, 8, 1), "o_proj")
        total += layer(X.chunk(2, 1)[rank])
    torch.testing.assert_close(total, X @ matrix(6, 8, 1).T)


def test_the_bias_of_a_row_layer_is_whole_on_every_device():
    layer = RowParallelLinear("o_proj", 8, 6, bias=True, context=rank_of(1, 2))
    layer.load_weight("weight", torch.zeros(6, 8), "o_proj")
    layer.load_weight("bias", torch.arange(6.0), "o_proj")
    torch.testing.assert_close(layer(X[:, :4]), torch.arange(6.0).expand(5, 6))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda c: RowParallelLinear("x.o_proj", 8, 6, bias=False, context=c), r"x\.o_proj \(8\)"),
        (lambda c: ColumnParallelLinear("x.up", 8, 4, bias=False, context=c), r"x\.up \(4\)"),
        (lambda c: QKVParallelLinear("q", 8, 4, 3, 2, bias=False, context=c), "heads"),
        (lambda c: QKVParallelLinear("q", 8, 6, 2, 2, bias=False, context=c), "key_value"),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(make, named):
    with pytest.raises(SettingsError, match=named):
        make(rank_of(0, 3))


def adapter(rows: int, rank: int, seed: int, columns: int = 8) -> AdapterModule:
    return AdapterModule(matrix(rank, columns, seed), matrix(rows, rank, seed + 1), 0.5)


def delta(module: AdapterModule, x: Tensor) -> Tensor:
    return module.scale * (x @ module.a.T) @ module.b.T


def test_an_adapter_may_change_some_parts_with_different_ranks():
    layer = qkv(CONTEXT)
    layer.enable_lora(2, 4)
    q, v = adapter(8, 3, 20), adapter(4, 1, 30)
    layer.set_adapter(1, {"q_proj": q, "v_proj": v})
    batch = AdapterBatch(torch.full((5,), 1), ((1, torch.arange(5)),), covers_all=True)
    expected = torch.cat([delta(q, X), torch.zeros(5, 4), delta(v, X)], 1)
    torch.testing.assert_close(layer(X, batch) - layer(X), expected)


def test_rows_without_adapter_stay_exactly_the_same():
    layer = qkv(CONTEXT)
    layer.enable_lora(2, 4)
    k = adapter(4, 2, 20)
    layer.set_adapter(0, {"k_proj": k})
    rows = torch.tensor([1, 4])
    batch = AdapterBatch(torch.tensor([-1, 0, -1, -1, 0]), ((0, rows),))
    change = layer(X, batch) - layer(X)
    assert torch.equal(change[[0, 2, 3]], torch.zeros(3, 16))
    torch.testing.assert_close(change[rows][:, 8:12], delta(k, X[rows]))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_device_has_its_share_of_an_adapter(rank):
    layer = qkv(rank_of(rank, 2))
    layer.enable_lora(1, 4)
    module = adapter(8, 2, 20)
    layer.set_adapter(0, {"q_proj": module})
    batch = AdapterBatch(torch.zeros(5), ((0, torch.arange(5)),), covers_all=True)
    change = (layer(X, batch) - layer(X))[:, :4]
    torch.testing.assert_close(change, delta(module, X).chunk(2, 1)[rank])


def test_an_adapter_without_memory_is_a_programming_error():
    with pytest.raises(RuntimeError, match="enable_lora"):
        qkv(CONTEXT).set_adapter(0, {})


class Halved(LinearMethod):
    """Keeps half of the weight, in another dtype, once it is loaded."""

    def create_weights(self, layer: nn.Module, out_features: int, in_features: int) -> None:
        weight = nn.Parameter(torch.zeros(out_features, in_features), requires_grad=False)
        layer.register_parameter("weight", weight)

    def finish_loading(self, layer: nn.Module) -> None:
        layer.register_buffer("halved", layer.get_parameter("weight").double() / 2)
        layer.register_parameter("weight", None)

    def apply(self, layer: nn.Module, x: Tensor) -> Tensor:
        return (x.double() @ layer.get_buffer("halved").T).float()


class HalveOnly(Quantization):
    """Halves the layers of one name and leaves others as they are."""

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def from_config(cls, config):
        return cls(config["name"])

    def linear_method(self, module_name: str) -> LinearMethod | None:
        return Halved() if module_name == self.name else None


@pytest.mark.parametrize(("name", "factor"), [("mlp.up", 0.5), ("mlp.down", 1.0)])
def test_a_quantization_method_keeps_the_weight_of_the_layers_that_it_names(name, factor):
    context = replace(CONTEXT, quantization=HalveOnly("mlp.up"))
    layer = ColumnParallelLinear(name, 8, 4, bias=False, context=context)
    layer.load_weight("weight", matrix(4, 8, 1), name.rpartition(".")[2])
    layer.finish_loading()
    torch.testing.assert_close(layer(X), factor * X @ matrix(4, 8, 1).T)


def test_a_method_that_knows_no_bias_gets_it_added():
    context = replace(CONTEXT, quantization=HalveOnly("mlp.up"))
    layer = ColumnParallelLinear("mlp.up", 8, 4, bias=True, context=context)
    layer.load_weight("weight", matrix(4, 8, 1), "up")
    layer.load_weight("bias", torch.arange(4.0), "up")
    layer.finish_loading()
    expected = 0.5 * X @ matrix(4, 8, 1).T + torch.arange(4.0)
    torch.testing.assert_close(layer(X), expected)


class Expecting(Halved):
    """Records the dtypes that `expect` is called with."""

    def __init__(self) -> None:
        self.expected: list[torch.dtype] = []

    def expect(self, layer: nn.Module, dtype: torch.dtype) -> None:
        self.expected.append(dtype)


def test_a_method_is_given_the_dtype_of_weights_and_not_of_biases():
    layer = QKVParallelLinear("a.qkv_proj", 8, 4, 2, 2, bias=True, context=CONTEXT)
    method = layer.method = Expecting()
    layer.load_weight("weight", torch.zeros(8, 8, dtype=torch.bfloat16), "q_proj")
    layer.load_weight("bias", torch.zeros(8, dtype=torch.float16), "q_proj")
    assert method.expected == [torch.bfloat16]


class FirstOfThree(TensorParallelGroup):
    """A rank with peers whose parts cancel each other, except for rounding."""

    rank, size = 0, 3

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return torch.cat([torch.full_like(x, 1e8), torch.full_like(x, -1e8), x], dim)


def test_in_batch_invariant_mode_parts_are_added_in_the_order_of_ranks():
    context = replace(CONTEXT, batch_invariant=True, tp=FirstOfThree())
    layer = RowParallelLinear("o_proj", 9, 2, bias=True, context=context)
    layer.load_weight("weight", torch.ones(2, 9), "o_proj")
    layer.load_weight("bias", torch.tensor([10.0, 20.0]), "o_proj")
    layer.finish_loading()
    assert torch.equal(layer(torch.ones(1, 3)), torch.tensor([[13.0, 23.0]]))


def test_an_index_that_is_cleared_changes_nothing_any_more():
    layer = qkv(CONTEXT)
    layer.enable_lora(2, 4)
    layer.set_adapter(0, {"k_proj": adapter(4, 2, 20)})
    batch = AdapterBatch(torch.zeros(5), ((0, torch.arange(5)),), covers_all=True)
    assert not torch.equal(layer(X, batch), layer(X))
    layer.set_adapter(0, {})
    assert torch.equal(layer(X, batch), layer(X))


@pytest.mark.parametrize(("sides", "side"), [((None,), "with A"), ((16, None), "with B")])
def test_in_batch_invariant_mode_an_adapter_whose_products_depend_on_the_batch_is_refused(
    monkeypatch, sides, side
):
    """What a library does with a matrix is found by trying; here the outcomes are given."""
    layer = qkv(replace(CONTEXT, batch_invariant=True))
    layer.enable_lora(2, 4)
    outcomes = iter(sides)
    monkeypatch.setattr(
        "quire.layers.linear.lora_stacks.largest_tile", lambda product, sample: next(outcomes)
    )
    with pytest.raises(RefusedError, match=f"an adapter's product {side} in float32"):
        layer.set_adapter(0, {"k_proj": adapter(4, 2, 20)})


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_of_query_and_key_heads_are_reordered_with_their_biases_and_adapters(rank):
    order, context = [2, 0, 3, 1], rank_of(rank, 2)
    layer = QKVParallelLinear("a", 8, 4, 2, 4, qk_order=order, bias=True, context=context)
    plain = QKVParallelLinear("a", 8, 4, 2, 4, bias=True, context=context)
    for one in (layer, plain):
        one.enable_lora(1, 2)
        for seed, (part, heads) in enumerate((("q", 4), ("k", 2), ("v", 2))):
            one.load_weight("weight", matrix(heads * 4, 8, seed), f"{part}_proj")
            one.load_weight("bias", matrix(heads * 4, 1, 10 + seed)[:, 0], f"{part}_proj")
        adapters = {
            f"{part}_proj": AdapterModule(matrix(2, 8, 20), matrix(heads * 4, 2, 21), 0.5)
            for part, heads in (("q", 4), ("k", 2), ("v", 2))
        }
        one.set_adapter(0, adapters)
    batch = AdapterBatch(torch.zeros(5, dtype=torch.int64), ((0, torch.arange(5)),), True)
    for adapted in (None, batch):
        heads = plain(X, adapted).view(5, 4, 4)  # 2 query heads, a key head and a value head
        expected = torch.cat((heads[:, :3, order], heads[:, 3:]), 1)
        torch.testing.assert_close(layer(X, adapted).view(5, 4, 4), expected)


@pytest.mark.parametrize("rank", [0, 1])
def test_every_device_has_a_replicated_matrix_whole_and_its_adapters(rank):
    layer = ReplicatedLinear("a.gate", 8, 3, bias=True, context=rank_of(rank, 2))
    weight, bias = matrix(3, 8, 0), matrix(3, 1, 1)[:, 0]
    assert layer.checkpoint_shape("weight", "gate") == (3, 8)
    layer.load_weight("weight", weight, "gate")
    layer.load_weight("bias", bias, "gate")
    layer.finish_loading()
    expected = nn.functional.linear(X, weight, bias)
    torch.testing.assert_close(layer(X), expected)
    layer.enable_lora(1, 2)
    a, b = matrix(2, 8, 2), matrix(3, 2, 3)
    layer.set_adapter(0, {"gate": AdapterModule(a, b, 0.5)})
    index = torch.zeros(len(X), dtype=torch.int64)
    adapters = AdapterBatch(index, ((0, torch.arange(len(X))),))
    torch.testing.assert_close(layer(X, adapters), expected + 0.5 * X @ a.T @ b.T)
