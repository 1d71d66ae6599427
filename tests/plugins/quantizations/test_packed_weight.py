"""Packed weights multiply as the rounded values, with the same bits for a row in any batch."""

import pytest
import torch
from format_reference import FORMATS, integer_product, round_input, round_weight
from native_libraries import BF16_SETS_HERE, SETS_AND_ARM, SETS_HERE, use_set

from quire.layers.linear.row_tiles import same_bits
from quire.machine.instruction_sets import cpu_flags
from quire.native.availability import native_unavailable_reason
from quire_quantizations import linear_library as library
from quire_quantizations.formats import (
    BFLOAT16,
    BFLOAT16_DOT,
    FLOAT16,
    FLOAT32,
    INT4,
    INT4_DOT,
    INT8,
    INT8_DOT,
)
from quire_quantizations.packed_weight import PackedWeight

SHAPES = [(1, 1), (7, 33), (48, 256), (100, 300), (130, 1025), (5, 3000), (97, 8)]
COUNTS = (*range(1, 71), 300)
BLOCK = 256  # inputs that are packed at once, where they need no scale

pytestmark = pytest.mark.skipif(
    native_unavailable_reason() is not None, reason=str(native_unavailable_reason())
)


@pytest.fixture(autouse=True, params=SETS_AND_ARM)
def instruction_set(request, monkeypatch):
    use_set(monkeypatch, library, request.param)
    return request.param


@pytest.fixture(params=FORMATS)
def weight_format(request):
    return FORMATS[request.param]


def _zeros(num_bytes: int) -> torch.Tensor:
    return torch.zeros(num_bytes, dtype=torch.uint8)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_is_that_of_the_numbers_that_are_kept(weight_format, shape):
    """Within 4e-7 of the sum of sizes: float32, added up in another order than the reference."""
    weight, bias = numbers(*shape), numbers(shape[0], seed=1)
    packed, kept = PackedWeight(weight, weight_format), round_weight(weight_format, weight).double()
    for count in (0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 70, 300):
        x = round_input(weight_format, numbers(count, shape[1], seed=2))
        expected = x.double() @ kept.T
        limit = 4e-7 * (x.double().abs() @ kept.abs().T + 1) * max(1, shape[1] ** 0.5 / 8)
        assert ((packed.multiply(x) - expected).abs() <= limit).all(), count
        limit += 1e-6 * bias.abs()
        assert ((packed.multiply(x, bias) - (expected + bias)).abs() <= limit).all(), count


@pytest.mark.parametrize("name", BF16_SETS_HERE)
@pytest.mark.parametrize("shape", [(100, 300), (33, 1031)])
def test_a_product_of_pairs_rounds_what_is_multiplied(monkeypatch, shape, name):
    use_set(monkeypatch, library, name)
    packed, x = PackedWeight(numbers(*shape), BFLOAT16_DOT), numbers(30, shape[1], seed=1)
    for count in (1, 5, 30):
        product = packed.multiply(x[:count])
        assert same_bits(product, packed.multiply(round_input(BFLOAT16_DOT, x[:count]))), count
        assert not torch.equal(product, PackedWeight(numbers(*shape), BFLOAT16).multiply(x[:count]))


@pytest.mark.parametrize("weight_format", [INT8_DOT, INT4_DOT])
@pytest.mark.parametrize("shape", [*SHAPES, (40, 5000)])
def test_a_product_of_codes_equals_its_simulation(weight_format, shape):
    """Extreme codes too: sums of pairs of bytes would saturate at a quarter of these products."""
    for scale in (1.0, 1e-3, 1e20):
        weight, x = numbers(*shape), numbers(30, shape[1], seed=1) * scale
        weight[0], x[0] = 1.0, 1.0
        weight[-1], x[1] = -1.0, torch.where(torch.arange(shape[1]) % 2 == 0, scale, -scale)
        product = PackedWeight(weight, weight_format).multiply(x)
        expected = integer_product(weight_format, x, weight)
        limit = 1e-6 * expected.abs() + 1e-7 * expected.abs().amax(-1, keepdim=True)
        assert ((product - expected).abs() <= limit).all()


@pytest.mark.parametrize("weight_format", [INT8_DOT, INT4_DOT])
@pytest.mark.parametrize("shape", [(7, 33), (100, 300), (130, 1025)])
def test_products_of_codes_have_the_same_bits_with_every_instruction(
    monkeypatch, instruction_set, weight_format, shape
):
    weight, x, products = numbers(*shape), numbers(40, shape[1], seed=1), []
    for name in dict.fromkeys((*SETS_HERE, instruction_set)):
        use_set(monkeypatch, library, name)
        for flags in (cpu_flags(), frozenset()):
            monkeypatch.setattr(library, "cpu_flags", lambda flags=flags: flags)
            products.append(PackedWeight(weight, weight_format).multiply(x))
    assert all(same_bits(product, products[0]) for product in products)


@pytest.mark.parametrize("weight_format", [INT8_DOT, INT4_DOT])
def test_inputs_whose_scale_has_no_inverse_are_zero(weight_format):
    x = torch.zeros(3, 200)
    x[1], x[2, 7] = 1e-44, torch.inf
    product = PackedWeight(numbers(5, 200), weight_format).multiply(x)
    assert torch.equal(product[:2], torch.zeros(2, 5))
    assert product[2].isnan().all()


def test_the_kind_of_products_is_that_of_the_instruction_set(monkeypatch):
    kinds = {}
    for flags in ((), ("avx512_vnni",), ("avx_vnni",)):
        monkeypatch.setattr(library, "cpu_flags", lambda flags=flags: frozenset(flags))
        for name in SETS_HERE:
            use_set(monkeypatch, library, name)
            kinds[name, *flags] = library.kind_of_products(INT8_DOT)
            assert library.kind_of_products(INT8) == library.FLOAT_PRODUCTS
    fused = {pair for pair, kind in kinds.items() if kind == library.FUSED_PRODUCTS}
    own = {("avx512", "avx512_vnni"), ("avx2", "avx_vnni")}
    assert fused == own & set(kinds)


@pytest.mark.parametrize("shape", [(100, 300), (33, 1030)])
def test_a_row_has_the_same_bits_in_any_company(weight_format, shape):
    packed = PackedWeight(numbers(*shape), weight_format)
    bias, x = numbers(shape[0], seed=1), numbers(300, shape[1], seed=2)
    whole = packed.multiply(x, bias)
    for count in COUNTS:
        assert same_bits(packed.multiply(x[:count], bias), whole[:count]), count
        assert same_bits(packed.multiply(x[-count:], bias), whole[-count:]), count
    assert same_bits(packed.multiply(x.flip(0), bias), whole.flip(0))


def test_threads_do_not_change_a_bit(weight_format):
    """The weight is large enough that two threads have a part: of the outputs, or of many rows.

    The share of 200 rows fits into the second cache whole, and that of 300 does not.
    """
    weight, x = numbers(700, 520), numbers(300, 520, seed=1)
    num_threads = torch.get_num_threads()
    products = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            packed = PackedWeight(weight, weight_format)
            products.append([packed.multiply(x[:count]) for count in (1, 8, 40, 200, 300)])
    finally:
        torch.set_num_threads(num_threads)
    for others in products[1:]:
        assert all(same_bits(one, other) for one, other in zip(products[0], others, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [*SHAPES, (64, 128)])
def test_rows_are_the_numbers_that_torch_keeps(weight_format, dtype, shape):
    """So codes and scales are those of the plain quantizer, to the bit."""
    weight = numbers(*shape).to(dtype)
    packed, kept = PackedWeight(weight, weight_format), round_weight(weight_format, weight.float())
    indices = torch.arange(shape[0]).flip(0)
    assert torch.equal(packed.rows(indices), kept[indices])


@pytest.mark.parametrize("index", [-1, 7])
def test_a_row_that_is_not_there_is_an_error(weight_format, index):
    packed = PackedWeight(numbers(7, 33), weight_format)
    with pytest.raises(IndexError, match=f"row {index} is out of range: there are 7 rows"):
        packed.rows(torch.tensor([0, index]))
    assert torch.equal(
        packed.rows(torch.tensor([6])), round_weight(weight_format, numbers(7, 33))[6:]
    )


@pytest.mark.parametrize("nan_bits", [0x7FC00000, 0x7F800001, 0x7FFFFFFF])
def test_groups_of_zeros_and_of_nothing_finite(weight_format, nan_bits):
    """Zeros stay zeros; NaN, also one that would round to infinity, and infinity stay visible."""
    weight = numbers(3, 300)
    weight[0] = 0
    weight.view(torch.int32)[1, 5] = nan_bits
    weight[2, 290] = torch.inf
    kept = PackedWeight(weight, weight_format).rows(torch.arange(3))
    assert torch.equal(kept[0], torch.zeros(300))
    assert kept[1, 5].isnan()
    assert not kept[2, 290].isfinite()
    assert kept[1, 130:].isfinite().all()


def test_numbers_whose_scale_has_no_inverse_are_those_that_torch_keeps(weight_format):
    """Zeros beside them, and behind the last input, stay zeros."""
    weight = numbers(3, 300)
    weight[0] *= 1e-38
    weight[0, 5] = 0.0
    weight[1, 256:] *= 1e-39
    kept = PackedWeight(weight, weight_format).rows(torch.arange(3))
    assert torch.equal(kept, round_weight(weight_format, weight))
    assert kept.isfinite().all()
    assert kept[0, 5] == 0.0


def test_what_is_not_a_number_reaches_its_row_only(weight_format):
    packed, x = PackedWeight(numbers(40, 64), weight_format), numbers(20, 64, seed=1)
    x[3, 7] = torch.nan
    product = packed.multiply(x)
    assert product[3].isnan().all()
    assert product[torch.arange(20) != 3].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_features", [64, 97])
def test_only_the_weight_is_read(weight_format, dtype, in_features):
    """Packed memory does not depend on what follows in the memory of the weight."""
    larger = numbers(40, in_features).to(dtype)
    packed, alone = larger[:37], larger[:37].clone()
    memories = [PackedWeight(weight, weight_format, _zeros).memory for weight in (packed, alone)]
    assert torch.equal(*memories)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_last_of_an_odd_number_of_inputs_has_no_neighbour(dtype):
    weight = torch.ones(3, 2 * BLOCK + 1, dtype=dtype)
    weight[1, 0] = torch.inf
    product = PackedWeight(weight, BFLOAT16).multiply(torch.ones(2, 2 * BLOCK + 1))
    assert product.tolist() == [[2 * BLOCK + 1, torch.inf, 2 * BLOCK + 1]] * 2


@pytest.mark.parametrize("weight_format", [FLOAT32, BFLOAT16])
def test_an_infinity_of_a_weight_comes_into_its_own_product_only(weight_format):
    """An infinity left in the padding after the last input would be multiplied by zero: NaN."""
    weight = torch.ones(3, 2 * BLOCK + 1)
    weight[1, 1 : 2 * BLOCK] = torch.inf
    product = PackedWeight(weight, weight_format).multiply(torch.ones(2, 2 * BLOCK + 1))
    assert product.tolist() == [[2 * BLOCK + 1, torch.inf, 2 * BLOCK + 1]] * 2


def test_x_may_have_several_counts_of_rows(weight_format):
    packed, x = PackedWeight(numbers(40, 64), weight_format), numbers(2, 3, 64, seed=1)
    product = packed.multiply(x)
    assert product.shape == (2, 3, 40)
    assert same_bits(product.flatten(0, 1), packed.multiply(x.flatten(0, 1)))


def test_indices_may_have_gaps(weight_format):
    packed, indices = PackedWeight(numbers(40, 64), weight_format), torch.arange(20)
    assert torch.equal(packed.rows(indices[::3]), packed.rows(indices[::3].clone()))


def test_rows_of_x_may_have_gaps(weight_format):
    packed, x = PackedWeight(numbers(40, 64), weight_format), numbers(20, 100, seed=1)
    assert same_bits(packed.multiply(x[::2, 3:67]), packed.multiply(x[::2, 3:67].contiguous()))


@pytest.mark.parametrize("bias", [torch.zeros(4), torch.zeros(5).bfloat16(), torch.zeros(1, 5)])
def test_another_bias_is_refused(weight_format, bias):
    with pytest.raises(ValueError, match=r"bias must be float32 \[5\], got"):
        PackedWeight(numbers(5, 8), weight_format).multiply(torch.zeros(2, 8), bias)


def test_a_bias_may_have_gaps(weight_format):
    packed, x, bias = PackedWeight(numbers(5, 8), weight_format), numbers(2, 8, seed=1), numbers(10)
    assert same_bits(packed.multiply(x, bias[::2]), packed.multiply(x, bias[::2].contiguous()))


@pytest.mark.parametrize("x", [torch.zeros(2, 7), torch.zeros(2, 8, dtype=torch.float64)])
def test_another_x_is_refused(weight_format, x):
    with pytest.raises(ValueError, match="float32 with 8 columns"):
        PackedWeight(numbers(3, 8), weight_format).multiply(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bf16_and_float32_keep_every_number(dtype):
    weight = numbers(50, 70).to(dtype)
    weight_format = BFLOAT16 if dtype == torch.bfloat16 else FLOAT32
    assert torch.equal(PackedWeight(weight, weight_format).rows(torch.arange(50)), weight.float())


@pytest.mark.parametrize(
    ("weight_format", "bits"), [(BFLOAT16, 16), (BFLOAT16_DOT, 16), (INT8, 8.125), (INT4, 4.5)]
)
def test_a_weight_takes_the_bits_that_are_declared(weight_format, bits):
    packed = PackedWeight(torch.zeros(512, 1024), weight_format)
    assert packed.memory.numel() * 8 == bits * 512 * 1024


def test_every_float16_is_kept():
    """Zeros of both signs, the smallest numbers, infinities and NaN too."""
    weight = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).view(-1, 64)
    packed = PackedWeight(weight, FLOAT16)
    kept = packed.rows(torch.arange(len(weight)))
    assert torch.equal(kept.isnan(), weight.isnan())
    bits = [numbers.nan_to_num(0.5).view(torch.int32) for numbers in (kept, weight.float())]
    assert torch.equal(*bits)
    finite = torch.where(weight.isfinite(), weight, 0)
    product = PackedWeight(finite, FLOAT16).multiply(torch.eye(64))
    assert torch.equal(product.T, finite.float())


def test_float16_is_rounded_to_nearest():
    halves = torch.arange(0x7C00, dtype=torch.int16).view(torch.float16).float()
    between = (halves[:-1].double() + halves[1:]) / 2
    weight = torch.cat((between * (1 - 1e-7), between, between * (1 + 1e-7))).float().view(1, -1)
    kept = PackedWeight(weight, FLOAT16).rows(torch.arange(1))
    assert torch.equal(kept, weight.half().float())
