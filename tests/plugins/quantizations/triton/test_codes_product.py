"""Products with codes, against the dequantized weight in float32."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from kernel_device import DEVICE
from quantized_weights import TABLES, random_weight

from quire_quantizations.triton.codes_linear import _on_device
from quire_quantizations.triton.codes_product import (
    LARGEST_UNIT,
    ONE_SHAPE,
    grouped_product,
    product,
)
from quire_quantizations.triton.packed_codes import packed, stacked

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-10}
if DEVICE.type == "cuda":  # Triton's interpreter cannot multiply matrices of bfloat16
    TOLERANCE[torch.bfloat16] = 2**-7


def numbers(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def pack(weight, dtype, *, has_float8=False):
    return packed(
        _on_device(weight, DEVICE),
        has_float8=has_float8,
        largest_unit=LARGEST_UNIT[dtype.itemsize],
    )


def check(weight, num_rows, dtype, *, has_bias=False, has_float8=False, tolerance=None, **options):
    codes = pack(weight, dtype, has_float8=has_float8)
    outputs, inputs = weight.shape
    x = (numbers(num_rows, inputs) / inputs**0.5).to(dtype)
    bias = numbers(outputs, seed=2).to(dtype) if has_bias else None
    wide = torch.full((num_rows, outputs + 3), torch.nan, dtype=dtype, device=DEVICE)
    out = wide[:, 1 : 1 + outputs]
    product(x, codes, bias, out, **options)
    expected = x.float() @ weight.dequantized().to(DEVICE).T
    if bias is not None:
        expected += bias.float()
    tolerance = tolerance or TOLERANCE[dtype]
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=4 * tolerance)
    assert wide[:, 0].isnan().all()
    assert wide[:, 1 + outputs :].isnan().all()
    return codes


@pytest.mark.parametrize(
    ("group_size", "zeros"),
    [
        *((32, "none"), (64, "none"), (128, "none"), (256, "none")),
        *((32, "integers"), (128, "integers"), (256, "integers")),
        *((32, "floats"), (64, "floats"), (256, "floats")),
    ],
)
@pytest.mark.parametrize("table", ["int4", "uint4", "int8", "e2m1", "e4m3"])
def test_every_format_multiplies_as_its_dequantized_weight(table, zeros, group_size):
    weight = random_weight(table, (70, 256), group_size, zeros=zeros)
    codes = check(weight, 3, torch.float16, has_bias=zeros == "none")
    is_byte = len(TABLES[table]) > 16
    assert codes.codes_per_byte == (1 if is_byte else 2)
    assert codes.scales.dtype is torch.float16
    has_zero_points = zeros == "integers" and table in ("int4", "uint4")
    if zeros == "none":
        assert codes.offsets is None
    else:
        assert codes.offsets.dtype is (torch.uint8 if has_zero_points else torch.float32)


@pytest.mark.parametrize(
    ("shape", "group_size"),
    [
        ((1, 1), 1),
        ((64, 128), 128),
        ((65, 129), 64),
        ((3, 100), 100),  # one group, no multiple of anything
        ((130, 40), 7),  # groups that no tile begins with
        ((17, 96), 48),  # a tile has halves of two groups
        ((5, 192), 96),
        ((9, 300), 16),
    ],
)
@pytest.mark.parametrize("table", ["uint4", "int8", "nf4"])
def test_weights_may_have_any_shape_and_groups_any_size(table, shape, group_size):
    tolerance = 2**-9 if table == "nf4" else None  # its values are rounded
    zeros = "integers" if table == "uint4" else "none"
    weight = random_weight(table, shape, group_size, zeros=zeros)
    check(weight, 2, torch.float16, has_bias=True, tolerance=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("num_rows", [1, 16, 17, 65, 130])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_any_number_of_rows_is_multiplied(num_rows, dtype, batch_invariant):
    weight = random_weight("uint4", (70, 256), 64, zeros="integers")
    check(weight, num_rows, dtype, has_bias=True, batch_invariant=batch_invariant)


def test_inputs_are_divided_among_programs_and_their_parts_added():
    weight = random_weight("int4", (20, 4096), 128)
    check(weight, 3, torch.float16, has_bias=True)
    check(weight, 3, torch.float16)


@pytest.mark.parametrize("table", ["uint4", "int8", "e2m1"])
@pytest.mark.parametrize("is_even", [True, False])
def test_inputs_of_a_group_may_be_anywhere(table, is_even):
    generator = torch.Generator().manual_seed(3)
    groups = torch.arange(256) // 32
    if not is_even:
        groups = torch.randint(6, (200,), generator=generator) * 2  # some groups have no inputs
    groups = groups[torch.randperm(len(groups), generator=generator)]
    zeros = "integers" if table == "uint4" else "none"
    weight = random_weight(table, (70, len(groups)), 32, zeros=zeros, groups=groups)
    codes = check(weight, 4, torch.float16)
    assert codes.order is not None
    assert (len(codes.order) == len(groups)) is is_even


def test_shards_of_inputs_begin_within_a_group():
    whole = random_weight("uint4", (32, 256), 128, zeros="integers")
    for columns in (range(64, 192), range(128), range(100, 256)):
        check(whole.columns(columns), 2, torch.float16)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("has_float8", [False, True])
@pytest.mark.parametrize("group_size", [64, 256])
def test_float8_is_converted_by_an_instruction_or_by_arithmetic(has_float8, dtype, group_size):
    if has_float8 and DEVICE.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no such instruction")
    weight = random_weight("e4m3", (40, 256), group_size)
    codes = check(weight, 2, dtype, has_float8=has_float8)
    assert codes.decoding == ("float8" if has_float8 else "e4m3")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_code_is_decoded_exactly_or_rounded_once(table, dtype):
    """Products with unit vectors; the scales are one."""
    values = TABLES[table]
    weight = random_weight(table, (16, 64), 64)
    codes = torch.arange(16 * 64).remainder(len(values)).to(torch.uint8).view(16, 64)
    weight = type(weight)(codes, torch.ones(16, 1), values, 64)
    unit = torch.eye(64, dtype=dtype, device=DEVICE)
    out = torch.empty(64, 16, dtype=dtype, device=DEVICE)
    # Infinities and NaN of a row would be multiplied by the zeros of the others.
    is_number = values.isfinite()
    codes[~is_number[codes.long()]] = 0
    product(unit, pack(weight, dtype), None, out)
    assert torch.equal(out.T.cpu(), values[codes.long()].to(dtype))


def test_no_rows_give_no_rows():
    out = torch.empty(0, 8, dtype=torch.float16, device=DEVICE)
    codes = pack(random_weight("int4", (8, 32), 32), torch.float16)
    product(numbers(0, 32).half(), codes, None, out)
    ends = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    assert grouped_product(numbers(0, 32).half(), stacked([codes] * 2), None, ends).shape == (0, 8)


COUNTS = [[1], [0, 1, 0, 2], [17, 0, 16, 15], [3] * 5, [0, 0, 70, 1, 0]]


@pytest.mark.parametrize("counts", COUNTS, ids=str)
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("order", ["in order", "sorted"])
def test_each_row_is_multiplied_by_its_expert(counts, batch_invariant, order):
    """Five rows of other devices' experts are behind them; every expert has an order of its own."""
    weights = []
    for expert in range(len(counts)):
        groups = None
        if order == "sorted":
            shuffled = torch.randperm(128, generator=torch.Generator().manual_seed(expert))
            groups = (torch.arange(128) // 32)[shuffled]
        weight = random_weight("uint4", (70, 128), 32, zeros="integers", groups=groups, seed=expert)
        weights.append(weight)
    stack = stacked([pack(weight, torch.float16) for weight in weights])
    x = (numbers(sum(counts) + 5, 128) / 128**0.5).half()
    x[sum(counts) :] = torch.nan
    bias = numbers(len(counts), 70, seed=2).half()
    ends = torch.tensor(counts, device=DEVICE).cumsum(0)
    out = grouped_product(x, stack, bias, ends, batch_invariant=batch_invariant)
    start = 0
    for expert, count in enumerate(counts):
        rows = slice(start, start + count)
        expected = x[rows].float() @ weights[expert].dequantized().to(DEVICE).T
        expected += bias[expert].float()
        torch.testing.assert_close(out[rows].float(), expected, rtol=2**-10, atol=2**-8)
        start += count


@pytest.fixture
def dot_by_rows(monkeypatch):
    """Multiply each element of a tile alike, as a GPU does. NumPy does not on every processor."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(np, "matmul", partial(np.einsum, "ij,jk->ik"))


@pytest.mark.usefixtures("dot_by_rows")
def test_batch_invariant_rows_have_the_same_bits_beside_others():
    codes = pack(random_weight("uint4", (70, 512), 64, zeros="integers"), torch.float16)
    x = numbers(130, 512).half()

    def multiplied(rows):
        out = torch.empty(len(rows), 70, dtype=torch.float16, device=DEVICE)
        product(rows, codes, None, out, batch_invariant=True)
        return out

    together = multiplied(x)
    for first, last in ((0, 1), (64, 80), (129, 130), (3, 70)):
        assert torch.equal(multiplied(x[first:last]), together[first:last])
    stack = stacked([codes] * 3)
    ends = torch.tensor([60, 60, 130], device=DEVICE)
    in_groups = grouped_product(x, stack, None, ends, batch_invariant=True)
    alone = torch.tensor([0, 0, 1], device=DEVICE)
    for row in (60, 125):
        one = grouped_product(x[row : row + 1], stack, None, alone, batch_invariant=True)
        assert torch.equal(one[0], in_groups[row])


def test_batch_invariant_parts_have_one_shape():
    assert all(shape.max_rows == float("inf") for shape in ONE_SHAPE.values())


def test_zero_points_that_no_byte_holds_are_offsets():
    weight = random_weight("uint4", (20, 64), 32)
    for zero in (-1.0, 128.0, 0.5):
        codes = check(replace(weight, offsets=-zero * weight.scales), 2, torch.float32)
        assert codes.offsets.dtype is torch.float32
