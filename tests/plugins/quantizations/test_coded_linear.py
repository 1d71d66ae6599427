"""Weights of quantized checkpoints are multiplied as codes, and are exactly the checkpoint's.

Each kind of products equals its simulation: those of the codes' values and of inputs that are
rounded as the kind says.
"""

from dataclasses import replace

import pytest
import torch
from format_reference import nearest_bf16, round_input
from model_parts import CONTEXT
from native_libraries import BF16_SETS_HERE, SETS_AND_ARM, SETS_HERE, use_set
from torch import Tensor, nn

from quire.interfaces.quantization import GroupedWeight
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.layers import LMHead, VocabParallelEmbedding
from quire.layers.linear.row_tiles import same_bits
from quire.layers.parallel import TensorParallelGroup
from quire.machine.instruction_sets import cpu_flags, here
from quire.native.availability import native_unavailable_reason
from quire_quantizations import linear_library as library
from quire_quantizations.formats import (
    BFLOAT16_DOT,
    E2M1,
    E4M3,
    FLOAT32,
    NF4,
    NUMBERS_4,
    NUMBERS_8,
    Format,
)
from quire_quantizations.methods import CheckpointCodes, CheckpointCodesInt8
from quire_quantizations.number_tables import e2m1_table, nf4_table

pytestmark = pytest.mark.skipif(
    native_unavailable_reason() is not None, reason=str(native_unavailable_reason())
)
NEEDS_PAIRS = pytest.mark.skipif(
    not BF16_SETS_HERE or here().name not in BF16_SETS_HERE,
    reason="this processor has no products of pairs",
)
PRODUCTS = ["float32", pytest.param("bfloat16", marks=NEEDS_PAIRS), "int8"]
E4M3_VALUES = torch.arange(256).byte().view(torch.float8_e4m3fn).float()
TABLES = {
    "signed4": torch.arange(16.0) - 8,
    "unsigned4": torch.arange(16.0),
    "signed3": torch.arange(8.0) - 4,
    "signed8": torch.arange(256.0) - 128,
    "unsigned8": torch.arange(256.0),
    "nf4": nf4_table(),
    "e2m1": e2m1_table(),
    "e4m3": E4M3_VALUES,
}


def made(
    table: str, shape=(70, 300), group_size=128, *, has_offsets=False, seed=0, groups=None
) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(seed)
    values = TABLES[table]
    codes = torch.randint(len(values), shape, generator=generator)
    if table == "e4m3":
        codes[(codes & 0x7F) == 0x7F] = 1
    num_groups = -(-shape[1] // group_size)
    scales, offsets = torch.rand(2, shape[0], num_groups, generator=generator) + 0.1
    return QuantizedWeight(
        codes.byte(), scales, values, group_size, offsets if has_offsets else None, groups
    )


def quantization(products="float32") -> CheckpointCodes:
    if products == "int8":
        return CheckpointCodesInt8.from_config({})
    method = CheckpointCodes.from_config({})
    return method.for_dtype(products) if products == "bfloat16" else method


def loaded(*pieces: QuantizedWeight, products="float32", name="mlp.up_proj"):
    method, layer = quantization(products).linear_method(name), nn.Module()
    method.create_weights(layer, sum(len(one.codes) for one in pieces), pieces[0].shape[1])
    first = 0
    for piece in pieces:
        method.load_quantized(layer, piece, first)
        first += len(piece.codes)
    method.finish_loading(layer)
    return method, layer


def inputs(num_rows: int, size: int) -> Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(num_rows))


def check(method, layer, *pieces: QuantizedWeight) -> None:
    """Compare with the product of the inputs and values that are multiplied."""
    order = pieces[0].group_indices().argsort(stable=True)
    weight = torch.cat([multiplied(method.weight_format, piece) for piece in pieces]).double()
    for num_rows in (1, 2, 5, 12, 33, 300):
        x = inputs(num_rows, weight.shape[1])
        rounded = round_input(method.weight_format, x[:, order]).double()
        expected = rounded @ weight[:, order].T
        error = (method.apply(layer, x) - expected).abs().max() / expected.abs().max()
        assert error < 2e-6, (num_rows, error)


def multiplied(weight_format: Format, weight: QuantizedWeight) -> Tensor:
    """Return the weight as it is multiplied: in bfloat16 the values of nf4 are rounded."""
    if weight_format == BFLOAT16_DOT:
        return nearest_bf16(weight.dequantized())
    if weight_format.inputs == "bfloat16":
        weight = replace(weight, table=nearest_bf16(weight.table))
    return weight.dequantized()


def in_products(chosen: Format, products: str) -> Format:
    """Return a format with the inputs that a kind of products rounds."""
    if products == "int8":
        return replace(chosen, inputs="int8") if chosen in (*NUMBERS_4, *NUMBERS_8) else chosen
    is_wide = chosen == FLOAT32 and products == "bfloat16"
    return BFLOAT16_DOT if is_wide else replace(chosen, inputs=products)


@pytest.mark.parametrize(
    ("table", "group_size", "has_offsets", "chosen"),
    [
        ("signed4", 128, False, NUMBERS_4[0]),
        ("signed4", 128, True, NUMBERS_4[1]),
        ("unsigned4", 128, True, NUMBERS_4[1]),
        ("signed4", 300, False, NUMBERS_4[0]),
        ("signed3", 64, False, NUMBERS_4[2]),
        ("unsigned4", 32, True, NUMBERS_4[3]),
        ("signed8", 128, False, NUMBERS_8[0]),
        ("unsigned8", 300, True, NUMBERS_8[1]),
        ("signed8", 32, False, NUMBERS_8[2]),
        ("unsigned8", 32, True, NUMBERS_8[3]),
        ("nf4", 64, False, NF4[0]),
        ("e2m1", 32, False, E2M1[0]),
        ("e4m3", 128, False, E4M3[0]),
        ("signed8", 16, False, NUMBERS_8[4]),
        ("unsigned8", 16, True, NUMBERS_8[5]),
        ("signed4", 16, False, NUMBERS_8[4]),
        ("signed4", 24, False, FLOAT32),
        ("nf4", 64, True, FLOAT32),
        ("e4m3", 64, False, FLOAT32),
    ],
)
@pytest.mark.parametrize("shape", [(70, 300), (33, 1030)])
@pytest.mark.parametrize("products", PRODUCTS)
def test_products_are_those_of_the_weight(table, group_size, has_offsets, chosen, shape, products):
    size = shape[1] if group_size == 300 else group_size
    weight = made(table, shape, size, has_offsets=has_offsets)
    method, layer = loaded(weight, products=products)
    assert method.weight_format == in_products(chosen, products)
    check(method, layer, weight)


def test_inputs_are_those_that_the_checkpoint_was_made_for():
    """Integers only: other codes have no such products."""
    chosen_by_table = {"signed8": NUMBERS_8[0], "unsigned4": NUMBERS_4[1], "e4m3": E4M3[0]}
    for table, chosen in chosen_by_table.items():
        weight = replace(made(table, has_offsets=table == "unsigned4"), has_int8_inputs=True)
        method, layer = loaded(weight)
        assert method.weight_format == in_products(chosen, "int8")
        check(method, layer, weight)
    pieces = [made("signed8"), replace(made("signed8", seed=1), has_int8_inputs=True)]
    assert loaded(*pieces)[0].weight_format == NUMBERS_8[0]


@pytest.mark.parametrize("products", PRODUCTS)
def test_every_code_has_its_value(products):
    check_every_code(products)


@pytest.mark.parametrize("name", SETS_AND_ARM)
def test_every_code_has_its_value_with_every_instruction(monkeypatch, name):
    use_set(monkeypatch, library, name, "CODE_LIBRARY")
    check_every_code("float32")


def check_every_code(products: str) -> None:
    """Compare products of unit vectors, whose sums are exact."""
    for table, values in TABLES.items():
        count = len(values)
        codes = torch.arange(count).byte().view(1, count)
        if table == "e4m3":
            codes = codes[:, (codes[0] & 0x7F) != 0x7F]
        weight = QuantizedWeight(codes, torch.ones(1, 1), values, codes.shape[1])
        method, layer = loaded(weight, products=products)
        assert method.weight_format.group_size
        kept = method.apply(layer, torch.eye(codes.shape[1]))[:, 0]
        expected = multiplied(method.weight_format, weight)[0]
        torch.testing.assert_close(kept, expected, rtol=1e-6, atol=1e-5)


def test_a_code_that_is_no_number_stays_one():
    weight = made("e4m3")
    weight.codes[3, 5] = 0x7F
    method, layer = loaded(weight)
    assert method.weight_format == FLOAT32
    assert method.apply(layer, inputs(1, 300))[0, 3].isnan()


@pytest.mark.parametrize("offsets", [(True, True), (True, False), (False, False)])
def test_merged_slices_are_kept_in_one_format(offsets):
    pieces = [made("signed4", (40 + i, 256), has_offsets=has, seed=i)
              for i, has in enumerate(offsets)]  # fmt: skip
    method, layer = loaded(*pieces)
    assert method.weight_format == NUMBERS_4[any(offsets)]
    check(method, layer, *pieces)


@pytest.mark.parametrize("products", PRODUCTS)
def test_slices_without_a_common_form_are_dequantized(products):
    for pieces in (
        (made("signed4", (40, 256)), made("nf4", (40, 256))),
        (made("signed4", (40, 256), 24), made("signed4", (40, 256), 32)),
        (made("e4m3", (40, 256)), made("e4m3", (40, 256), 64)),
    ):
        method, layer = loaded(*pieces, products=products)
        assert method.weight_format == in_products(FLOAT32, products)
        check(method, layer, *pieces)


def test_a_slice_that_is_not_quantized_makes_the_layer_dense():
    weight, dense = made("signed4", (40, 256)), torch.randn(24, 256).bfloat16()
    method, layer = CheckpointCodes.from_config({}).linear_method("a"), nn.Module()
    method.create_weights(layer, 64, 256)
    method.load_quantized(layer, weight, 0)
    method.load(layer, dense, 40)
    method.finish_loading(layer)
    x = inputs(5, 256)
    expected = x.double() @ torch.cat((weight.dequantized(), dense.float())).double().T
    torch.testing.assert_close(method.apply(layer, x).double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("columns", [range(128, 256), range(32, 160), range(160, 300)])
def test_a_shard_of_the_inputs_is_kept_if_its_groups_are_whole(columns):
    weight = made("signed4").columns(columns)
    method, layer = loaded(weight)
    assert method.weight_format == (NUMBERS_4[0] if columns.start == 128 else NUMBERS_4[2])
    check(method, layer, weight)


@pytest.mark.parametrize("has_offsets", [True, False])
@pytest.mark.parametrize("num_columns", [300, 1030])
@pytest.mark.parametrize("table", ["signed4", "signed8"])
@pytest.mark.parametrize("products", PRODUCTS)
def test_inputs_in_another_order_are_multiplied_in_that_order(
    has_offsets, num_columns, table, products
):
    groups = torch.randperm(num_columns, generator=torch.Generator().manual_seed(0)) // 128
    weight = made(table, (70, num_columns), has_offsets=has_offsets, groups=groups)
    method, layer = loaded(weight, products=products)
    chosen = NUMBERS_4[has_offsets] if table == "signed4" else NUMBERS_8[has_offsets]
    assert method.weight_format == in_products(chosen, products)
    check(method, layer, weight)
    part = weight.columns(range(128))  # not of whole groups
    method, layer = loaded(part, products=products)
    assert method.weight_format == in_products(FLOAT32, products)
    check(method, layer, part)


@pytest.mark.parametrize("products", PRODUCTS)
def test_experts_have_orders_of_their_own(products):
    orders = (None, torch.randperm(300, generator=torch.Generator().manual_seed(0)) // 128)
    experts = [
        loaded(made("signed4", groups=groups, seed=i), products=products)
        for i, groups in enumerate(orders)
    ]
    weights = [GroupedWeight(method, layer, None) for method, layer in experts]
    rows = inputs(7, 300)
    product = weights[0].method.grouped_product(weights)
    found = product(rows, torch.tensor([3, 7]))
    expected = [
        one.method.apply(one.layer, part)
        for one, part in zip(weights, rows.split((3, 4)), strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("products", PRODUCTS)
def test_rows_of_several_experts_have_their_own_experts_products(has_bias, products):
    counts, shape = (3, 0, 40), (70, 300)
    experts = [
        loaded(made("unsigned4", shape, has_offsets=True, seed=i), products=products)
        for i in range(3)
    ]
    biases = inputs(3, 70)
    weights = [
        GroupedWeight(method, layer, bias if has_bias else None)
        for (method, layer), bias in zip(experts, biases, strict=True)
    ]
    product = weights[0].method.grouped_product(weights)
    rows = inputs(sum(counts), 300)
    found = product(rows, torch.tensor(counts).cumsum(0))
    expected = torch.cat(
        [
            one.method.apply(one.layer, part) + (bias if has_bias else 0)
            for one, part, bias in zip(weights, rows.split(counts), biases, strict=True)
        ]
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


FORMS = [  # table, size of groups, with offsets
    ("signed4", 128, False),
    ("unsigned4", 128, True),
    ("signed4", 32, False),
    ("unsigned8", 128, True),
    ("signed8", 32, False),
    ("signed8", 16, False),
    ("unsigned8", 16, True),
    ("nf4", 32, False),
    ("e2m1", 32, False),
    ("e4m3", 128, False),
]


@pytest.mark.parametrize(("table", "group_size", "has_offsets"), FORMS)
@pytest.mark.parametrize("products", PRODUCTS)
def test_a_row_has_the_same_bits_in_every_batch(table, group_size, has_offsets, products):
    """The whole batch does not fit into the second cache, so it is multiplied in blocks."""
    weight = made(table, (70, 1030), group_size, has_offsets=has_offsets)
    method, layer = loaded(weight, products=products)
    bias, x = inputs(1, 70)[0], inputs(300, 1030)
    together = method.apply_with_bias(layer, x, bias)
    assert method.is_batch_invariant
    for count in (*range(1, 27), 70):
        assert same_bits(method.apply_with_bias(layer, x[:count], bias), together[:count]), count
        assert same_bits(method.apply_with_bias(layer, x[-count:], bias), together[-count:]), count


@pytest.mark.parametrize("name", SETS_AND_ARM)
@pytest.mark.parametrize(("table", "group_size", "has_offsets"), FORMS[:7])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_products_of_integers_have_the_same_bits_with_every_instruction(
    monkeypatch, table, group_size, has_offsets, is_ordered, name
):
    groups = torch.randperm(300, generator=torch.Generator().manual_seed(0)) // group_size
    order = groups if is_ordered else None
    weight = made(table, (70, 300), group_size, has_offsets=has_offsets, groups=order)
    x, products = inputs(40, 300), []
    for chosen in dict.fromkeys((*SETS_HERE[:1], name)):
        for attribute in ("INTEGERS_LIBRARY", "FUSED_LIBRARY"):
            use_set(monkeypatch, library, chosen, attribute)
        for flags in (cpu_flags(), frozenset()):
            monkeypatch.setattr(library, "cpu_flags", lambda flags=flags: flags)
            method, layer = loaded(weight, products="int8")
            products.append(method.apply(layer, x))
    assert all(same_bits(product, products[0]) for product in products)


@pytest.mark.parametrize("table", ["signed4", "unsigned8"])
def test_inputs_of_integers_whose_scale_has_no_inverse_are_zero(table):
    x = torch.zeros(3, 300)
    x[1], x[2, 7] = 1e-44, torch.inf
    method, layer = loaded(made(table, has_offsets=True), products="int8")
    product = method.apply(layer, x)
    assert torch.equal(product[:2], torch.zeros(2, 70))
    assert product[2].isnan().all()


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("has_offsets", [False, True])
def test_what_is_not_a_number_reaches_its_row_only(products, has_offsets):
    method, layer = loaded(made("signed4", has_offsets=has_offsets), products=products)
    x = inputs(20, 300)
    x[3, 7] = torch.nan
    product = method.apply(layer, x)
    assert product[3].isnan().all()
    assert product[torch.arange(20) != 3].isfinite().all()


@pytest.mark.parametrize(
    ("table", "bits"), [("signed4", 4.3), ("unsigned4", 4.6), ("nf4", 5.1), ("e4m3", 8.3)]
)
def test_memory_is_that_of_the_codes_and_scales(table, bits):
    weight = made(table, (256, 1024), 32 if table == "nf4" else 128)
    _, layer = loaded(weight)
    held = sum(tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers()))
    assert held * 8 / weight.codes.numel() < bits


@pytest.mark.parametrize(
    "sorts",
    [
        (("signed4", 32, True), ("signed8", 16, False)),
        (("signed8", 16, False), ("unsigned4", 32, True), ("signed3", 64, False)),
        (("signed4", 128, False), ("signed4", 32, False)),
        (("signed4", 300, False), ("signed8", 300, True)),
    ],
)
def test_merged_numbers_of_different_sizes_and_groups_are_kept_in_bytes(sorts):
    pieces = [
        made(table, (40 + seed, 300), size, has_offsets=has_offsets, seed=seed)
        for seed, (table, size, has_offsets) in enumerate(sorts)
    ]
    method, layer = loaded(*pieces)
    assert method.weight_format in NUMBERS_8
    check(method, layer, *pieces)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("has_offsets", [False, True])
@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize("products", PRODUCTS)
def test_rows_are_those_of_the_weight(table, has_offsets, is_ordered, products):
    """Not rounded, but where the weight is dequantized in bfloat16."""
    groups = torch.arange(384) % 3 if is_ordered else None
    weight = made(table, (70, 384), has_offsets=has_offsets, groups=groups)
    method, layer = loaded(weight, products=products, name="lm_head")
    ids = torch.tensor([5, 0, 69, 5, 31, 32, 33, 1, 2, 3])
    found, expected = method.rows(layer, ids), weight.dequantized()[ids]
    if method.weight_format == BFLOAT16_DOT:
        expected = nearest_bf16(expected)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)
    with pytest.raises(IndexError, match="row 70 is out of range: there are 70 rows"):
        method.rows(layer, torch.tensor([70]))


def test_the_rows_of_a_head_are_its_weights():
    weight = made("signed4")
    method, layer = loaded(weight, name="lm_head")
    ids = torch.tensor([5, 0, 69])
    assert torch.equal(method.rows(layer, ids), weight.dequantized()[ids])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("table", ["signed8", "nf4", "e4m3"])
def test_heads_and_embeddings_keep_the_codes(tied, table):
    """So does a device with the padding behind the vocabulary."""
    weight = made(table, (41, 256), has_offsets=table == "signed8")
    dense, ids, parts = weight.dequantized(), torch.tensor([3, 0, 40]), []
    for rank in range(2):
        context = replace(CONTEXT, quantization=CheckpointCodes.from_config({}), tp=OneOfTwo(rank))
        embedding = VocabParallelEmbedding(41, 256, context)
        head = LMHead(41, 256, context, tied_to=embedding if tied else None)
        embedding.load_quantized("weight", weight, "embed_tokens")
        if not tied:
            head.load_quantized("weight", weight, "lm_head")
        embedding.finish_loading()
        head.finish_loading()
        assert head.method.weight_format.group_size
        assert not list(embedding.parameters())
        mine = dense[21 * rank : 21 * (rank + 1)]
        x = inputs(5, 256)
        expected = x @ mine.T
        assert (head(x) - expected).abs().max() < 2e-6 * expected.abs().max()
        parts.append(embedding(ids))
    torch.testing.assert_close(sum(parts), dense[ids], rtol=1e-6, atol=1e-6)


class OneOfTwo(TensorParallelGroup):
    """A rank whose partial sums are returned as they are."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor, tensor]
