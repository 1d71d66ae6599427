"""The codes of the kernels equal those of torch."""

import pytest
import torch
import triton
import triton.language as tl
from kernel_device import DEVICE

from quire_attention_backends.shared.kv_codec import (
    FLOAT8_UNIT,
    decode_float8,
    encode_float8,
    encode_int8,
    int8_scale,
    scale_magnitudes,
)
from quire_attention_backends.torch.kept_rows import float8_codes, int8_codes

CODES = torch.arange(256).to(torch.uint8)
VALUES = CODES.view(torch.float8_e4m3fn).float()


@triton.jit
def decode(codes, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, decode_float8(tl.load(codes + i)))


@triton.jit
def encode(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, encode_float8(tl.load(x + i)))


@triton.jit
def encode_rows(x, out, scales, N: tl.constexpr, D: tl.constexpr):
    rows = tl.arange(0, N)
    at = rows[:, None] * D + tl.arange(0, D)[None, :]
    numbers = tl.load(x + at)
    scale = int8_scale(tl.max(scale_magnitudes(numbers), 1))
    tl.store(scales + rows, scale)
    tl.store(out + at, encode_int8(numbers, scale[:, None]))


def encoded(x):
    size = triton.next_power_of_2(len(x))
    padded = torch.zeros(size, device=DEVICE)
    padded[: len(x)] = x
    out = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    encode[(1,)](padded, out, N=size, enable_fp_fusion=True)
    return out[: len(x)].cpu()


def encoded_rows(x):
    codes = torch.empty(x.shape, dtype=torch.int8, device=DEVICE)
    scales = torch.empty(len(x), device=DEVICE)
    encode_rows[(1,)](x.to(DEVICE), codes, scales, N=x.shape[0], D=x.shape[1])
    return codes.cpu(), scales.cpu()


def test_every_code_is_decoded_exactly():
    out = torch.empty(256, dtype=torch.float16, device=DEVICE)
    decode[(1,)](CODES.to(DEVICE), out, N=256, enable_fp_fusion=True)
    decoded, is_number = out.cpu().float() * FLOAT8_UNIT, ~VALUES.isnan()
    assert is_number.sum() == 254
    assert torch.equal(decoded[is_number], VALUES[is_number])
    assert torch.equal(decoded[~is_number], torch.tensor([480.0, -480.0]))


def test_every_value_has_its_code():
    is_number = ~VALUES.isnan()
    assert torch.equal(encoded(VALUES[is_number]), CODES[is_number])


def test_ties_go_to_even_and_neighbours_to_the_nearest():
    values = VALUES[~VALUES.isnan()].unique()
    ties = (values[1:] + values[:-1]) / 2
    above, below = (ties.nextafter(torch.tensor(side)) for side in (torch.inf, -torch.inf))
    x = torch.cat((ties, above, below))
    assert torch.equal(encoded(x), x.to(torch.float8_e4m3fn).view(torch.uint8))


def test_random_values_of_every_magnitude_have_torchs_codes():
    draw = torch.Generator().manual_seed(0)
    exponents = torch.randint(-45, 39, (4000,), generator=draw)
    x = torch.randn(4000, generator=draw) * 10.0**exponents
    assert torch.equal(encoded(x), float8_codes(x, 1.0))


def test_what_is_too_large_becomes_the_largest():
    x = torch.tensor([448.0, 449.0, 464.0, 465.0, 1e30, torch.inf])
    assert (encoded(x) == 0x7E).all()
    assert (encoded(-x) == 0xFE).all()


def test_nan_has_its_code():
    assert ((encoded(torch.tensor([torch.nan, -torch.nan])) & 0x7F) == 0x7F).all()


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_rows_of_int8_have_the_reference_codes_and_scales(size):
    x = torch.randn(16, 128, generator=torch.Generator().manual_seed(1)) * size
    codes, scales = encoded_rows(x)
    expected_codes, expected_scales = int8_codes(x)
    assert torch.equal(codes, expected_codes)
    assert torch.equal(scales, expected_scales)
    assert codes.abs().amax(1).eq(127).all()


def test_ties_between_int8_codes_go_to_even():
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]])
    codes, _ = encoded_rows(x)
    assert codes.tolist() == [[127, 0, 2, 2, 0, -2, -2, 126]]


def test_a_row_of_zeros_is_kept_as_zeros():
    codes, scales = encoded_rows(torch.zeros(2, 16))
    assert not codes.any()
    assert not scales.any()


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_the_scale_of_a_row_with_nan_or_infinity_is_not_finite(odd):
    x = torch.ones(2, 16)
    x[1, 3] = odd
    _, scales = encoded_rows(x)
    assert scales.isfinite().tolist() == [True, False]
