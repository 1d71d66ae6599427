"""One vector of float32 against torch and plain arithmetic, for each instruction set."""

import ctypes
import os
import struct
from pathlib import Path

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from native_libraries import SETS_HERE

from quire.native.library import NativeLibrary

pytestmark = NEEDS_COMPILER

SOURCE = Path(__file__).parent / "vectors.cpp"
POINTERS = (ctypes.c_void_p,)
FUNCTIONS = {
    "lanes": POINTERS,
    "products": (*POINTERS * 4, ctypes.c_int64),
    **dict.fromkeys(("larger", "smaller"), (*POINTERS * 3, ctypes.c_int64)),
    **dict.fromkeys(
        ("exponentials", "widened", "widened_singly", "narrowed", "from_bytes", "rounded", "sums",
         "maxima"),
        (*POINTERS * 2, ctypes.c_int64),
    ),
}  # fmt: skip
WIDTHS = {"amx": 16, "avx512": 16, "avx2": 8, "neon": 4}
NAN, INF = float("nan"), float("inf")
# No vector instructions of their own: what any processor gets from the compiler's vectors.
PLAIN = "plain"
PLAIN_FLAGS = "-mno-avx -mno-avx2 -mno-fma -mno-avx512f"


@pytest.fixture(scope="module", params=[*SETS_HERE, PLAIN])
def vectors(request, tmp_path_factory):
    if request.param == PLAIN and os.uname().machine != "x86_64":
        pytest.skip("this processor's vectors are part of its base")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIRE_CPU_ISA", "avx2" if request.param == PLAIN else request.param)
        if request.param == PLAIN:
            patch.setenv("QUIRE_CXXFLAGS", PLAIN_FLAGS)
        patch.setenv("QUIRE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        library = NativeLibrary("vectors", SOURCE, FUNCTIONS).load()
    library.width = WIDTHS.get(request.param, 4)
    return library


def call(function, *inputs, dtype=torch.float32, count=None):
    out = torch.empty(count or inputs[0].numel(), dtype=dtype)
    function(*(tensor.data_ptr() for tensor in inputs), out.data_ptr(), inputs[0].numel())
    return out


def numbers(count, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator) * scale


def bits(tensor):
    return tensor.view(torch.int32)


def padded(values):
    """Return numbers as whole vectors of any width, the last one repeated."""
    missing = -len(values) % 16
    return torch.tensor([*values, *values[-1:] * missing], dtype=torch.float32)


def test_a_vector_is_as_wide_as_the_instruction_set(vectors):
    width = torch.zeros(1, dtype=torch.int32)
    vectors.lanes(width.data_ptr())
    assert width.item() == vectors.width


def test_exp_is_right_to_the_last_places(vectors):
    x = torch.linspace(-87.3, 88.7, 160_000)
    got, truth = call(vectors.exponentials, x).double(), torch.exp(x.double())
    assert ((got - truth).abs() / truth).max() < 1.5 * 2**-23


def test_exp_of_small_numbers_is_right_and_of_zero_exact(vectors):
    x = padded([0.0, -0.0, 1e-45, -1e-38, 1e-20, -1e-8, 1e-6])
    got = call(vectors.exponentials, x)
    assert torch.equal(got, torch.exp(x))
    assert got[0] == 1


def test_exp_ends_in_zero_and_infinity_and_keeps_nan(vectors):
    x = padded([-INF, -1e30, -88.0, -87.4, 88.8, 1e30, INF, NAN, -NAN])
    got = call(vectors.exponentials, x)
    assert got[:4].tolist() == [0, 0, 0, 0]
    assert got[4:7].tolist() == [INF, INF, INF]
    assert got[7:9].isnan().all()


def test_exp_of_a_number_does_not_depend_on_its_lane(vectors):
    x = numbers(16, scale=20)
    first = call(vectors.exponentials, x)
    for shift in range(1, 16):
        assert torch.equal(bits(call(vectors.exponentials, x.roll(shift))), bits(first.roll(shift)))


@pytest.mark.parametrize("function", ["widened", "widened_singly"])
def test_every_bfloat16_becomes_its_float32(vectors, function):
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    got = call(getattr(vectors, function), halves)
    assert torch.equal(bits(got), halves.to(torch.int32) << 16)


def test_every_bfloat16_comes_back_as_it_was(vectors):
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    wide = (halves.to(torch.int32) << 16).view(torch.float32)
    got = call(vectors.narrowed, wide, dtype=torch.uint16).to(torch.int32)
    is_number = ~wide.isnan()
    assert torch.equal(got[is_number], halves.to(torch.int32)[is_number])
    assert torch.equal(got[~is_number], halves.to(torch.int32)[~is_number] | 0x40)


def test_narrowing_rounds_to_nearest_and_ties_to_even(vectors):
    upper = torch.arange(0x3F00, 0x4100, dtype=torch.int32) << 16
    for lower in (0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (upper | lower).view(torch.float32)
        got = call(vectors.narrowed, x, dtype=torch.uint16)
        assert torch.equal(got.view(torch.bfloat16), x.to(torch.bfloat16))
    x = numbers(100_000, scale=1e3)
    got = call(vectors.narrowed, x, dtype=torch.uint16)
    assert torch.equal(got.view(torch.bfloat16), x.to(torch.bfloat16))


def test_narrowing_keeps_infinity_and_nan(vectors):
    largest = struct.unpack("f", struct.pack("I", 0x7F7FFFFF))[0]
    quiet_in_the_lower_half = struct.unpack("f", struct.pack("I", 0x7FC00001))[0]
    signalling_in_the_lower_half = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)
    x = torch.tensor([INF, -INF, largest, NAN, quiet_in_the_lower_half])
    x = torch.cat((x, signalling_in_the_lower_half))
    got = call(vectors.narrowed, x, dtype=torch.uint16).view(torch.bfloat16)
    assert got[:3].tolist() == [INF, -INF, INF]
    assert got[3:].isnan().all()


def test_every_byte_becomes_its_number(vectors):
    x = torch.arange(-128, 128, dtype=torch.int8)
    assert torch.equal(call(vectors.from_bytes, x), x.float())


def test_a_product_and_a_sum_are_rounded_once(vectors):
    a, b = numbers(16_000, 1), numbers(16_000, 2)
    c = -(a * b)  # what is left is the rounding of the product
    got = call(vectors.products, a, b, c)
    assert torch.equal(got.double(), a.double() * b.double() + c.double())
    assert got.count_nonzero() > 15_000


@pytest.mark.parametrize(
    ("function", "reference"), [("larger", torch.maximum), ("smaller", torch.minimum)]
)
def test_the_larger_and_the_smaller_of_two(vectors, function, reference):
    a, b = numbers(1600, 3), numbers(1600, 4)
    a[:16] = torch.tensor([INF, -INF] * 8)
    assert torch.equal(call(getattr(vectors, function), a, b), reference(a, b))


def test_of_nan_and_a_number_the_second_is_taken(vectors):
    a, b = padded([NAN, 1.0]), padded([2.0, 2.0])
    assert call(vectors.larger, a, b)[0] == 2
    assert call(vectors.smaller, a, b)[0] == 2


def test_rounding_goes_to_the_nearest_and_ties_to_even(vectors):
    x = torch.cat((padded([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, -0.4, 0.6]), numbers(1600, 5, 1e4)))
    assert torch.equal(call(vectors.rounded, x), x.round())


def pairwise(lanes, add):
    """Join the two halves, then their halves: the order that is promised."""
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = add(lanes[:, :half], lanes[:, half:])
    return lanes[:, 0]


def test_lanes_are_added_in_a_fixed_order(vectors):
    x = numbers(1600, 6)
    lanes = x.view(-1, vectors.width)
    got = call(vectors.sums, x, count=len(lanes))
    assert torch.equal(bits(got), bits(pairwise(lanes, torch.add)))


def test_the_largest_lane_is_found_wherever_it_is(vectors):
    for lane in range(vectors.width):
        x = numbers(vectors.width, 7)
        x[lane] = 9
        assert call(vectors.maxima, x, count=1).item() == 9
    x = numbers(1600, 8)
    lanes = x.view(-1, vectors.width)
    assert torch.equal(call(vectors.maxima, x, count=len(lanes)), lanes.amax(1))
