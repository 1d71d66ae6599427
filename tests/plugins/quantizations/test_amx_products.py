"""Products by AMX, emulated: those of the reference, in any batch; of int8 with the same bits."""

import re
import shutil
import subprocess

import pytest
import torch
from amx_emulated import AMX, BASE, EMULATOR, HAS_BASE, emulated_library, use_emulated
from format_reference import integer_product, round_input, round_weight
from native_libraries import SETS_HERE, again, use_set

from quire.layers.linear.row_tiles import same_bits
from quire.machine.instruction_sets import VARIABLE, cpu_flags
from quire.native.availability import native_unavailable_reason
from quire.native.compiler import FLAGS_VARIABLE
from quire.native.library import NativeLibrary
from quire.native.logged_reasons import LoggedReasons
from quire_quantizations import linear_library as library
from quire_quantizations.formats import BFLOAT16, BFLOAT16_DOT, INT4, INT8_DOT
from quire_quantizations.packed_experts import PackedExperts
from quire_quantizations.packed_weight import PackedWeight

FORMATS = {"bf16_dot": BFLOAT16_DOT, "int8_dot": INT8_DOT}
SHAPES = [(1, 1), (7, 33), (48, 256), (32, 64), (100, 300), (130, 1025), (5, 3000), (97, 8)]
COUNTS = (*range(1, 36), 47, 48, 49, 64, 65, 100, 300)

pytestmark = [
    pytest.mark.skipif(
        native_unavailable_reason() is not None, reason=str(native_unavailable_reason())
    ),
    pytest.mark.skipif(not HAS_BASE, reason=f"this processor has no {BASE}"),
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return emulated_library(tmp_path_factory.mktemp("emulated"))


@pytest.fixture(params=FORMATS)
def weight_format(request, monkeypatch, emulated):
    use_emulated(monkeypatch, emulated)
    return FORMATS[request.param]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_is_that_of_the_rounded_numbers(weight_format, shape):
    """Within 4e-7 of the sum of sizes, as the products of the other instruction sets."""
    weight, bias = numbers(*shape), numbers(shape[0], seed=1)
    packed, kept = PackedWeight(weight, weight_format), round_weight(weight_format, weight).double()
    assert library.kind_of_products(weight_format) == library.MATRIX_PRODUCTS
    for count in (0, 1, 5, 15, 16, 17, 31, 32, 33, 70, 300):
        x = round_input(weight_format, numbers(count, shape[1], seed=2))
        expected = x.double() @ kept.T
        limit = 4e-7 * (x.double().abs() @ kept.abs().T + 1) * max(1, shape[1] ** 0.5 / 8)
        assert ((packed.multiply(x) - expected).abs() <= limit).all(), count
        limit += 1e-6 * bias.abs()
        assert ((packed.multiply(x, bias) - (expected + bias)).abs() <= limit).all(), count


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
    weight, x = numbers(700, 520), numbers(600, 520, seed=1)
    num_threads = torch.get_num_threads()
    products = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            packed = PackedWeight(weight, weight_format)
            products.append([packed.multiply(x[:count]) for count in (1, 8, 40, 200, 600)])
    finally:
        torch.set_num_threads(num_threads)
    for others in products[1:]:
        assert all(same_bits(one, other) for one, other in zip(products[0], others, strict=True))


def test_rows_of_several_experts_have_the_bits_of_their_own(weight_format):
    counts = [5, 0, 33, 1, 16, 40]
    weights = [PackedWeight(numbers(130, 300, seed=seed), weight_format) for seed in range(6)]
    x = numbers(sum(counts), 300, seed=9)
    out = PackedExperts(weights, [])(x, torch.tensor(counts).cumsum(0))
    own = [weight.multiply(part) for weight, part in zip(weights, x.split(counts), strict=True)]
    assert same_bits(out, torch.cat(own))


def test_what_is_not_a_number_reaches_its_row_only(weight_format):
    packed, x = PackedWeight(numbers(40, 97), weight_format), numbers(20, 97, seed=1)
    x[3, 7] = torch.nan
    product = packed.multiply(x)
    assert product[3].isnan().all()
    assert product[torch.arange(20) != 3].isfinite().all()


def test_an_infinity_of_a_weight_comes_into_its_own_product_only(monkeypatch, emulated):
    """What follows the last words is multiplied by zero: it must not be an infinity."""
    use_emulated(monkeypatch, emulated)
    weight = torch.ones(64, 33)
    weight[1, 0] = weight[32:] = torch.inf  # of the next panel, too
    product = PackedWeight(weight, BFLOAT16_DOT).multiply(torch.ones(2, 33))
    assert product[:, :32].isfinite().tolist() == [[i != 1 for i in range(32)]] * 2


@pytest.mark.parametrize("shape", [*SHAPES, (40, 5000)])
def test_a_product_of_codes_has_the_bits_of_every_instruction_set(monkeypatch, emulated, shape):
    weight, x, products = numbers(*shape), numbers(40, shape[1], seed=1), []
    weight[0], x[0] = 1.0, 1.0
    weight[-1], x[1] = -1.0, torch.where(torch.arange(shape[1]) % 2 == 0, 1.0, -1.0)
    for name in SETS_HERE:
        use_set(monkeypatch, library, name)
        products.append(PackedWeight(weight, INT8_DOT).multiply(x))
    use_emulated(monkeypatch, emulated)
    product = PackedWeight(weight, INT8_DOT).multiply(x)
    assert all(same_bits(product, other) for other in products)
    expected = integer_product(INT8_DOT, x, weight)
    limit = 1e-6 * expected.abs() + 1e-7 * expected.abs().amax(-1, keepdim=True)
    assert ((product - expected).abs() <= limit).all()


def test_other_formats_are_not_multiplied_by_it(monkeypatch, emulated):
    use_emulated(monkeypatch, emulated)
    assert library.kind_of_products(BFLOAT16) == library.FLOAT_PRODUCTS
    assert library.kind_of_products(INT4) == library.FLOAT_PRODUCTS


@pytest.fixture
def real(monkeypatch):
    """The kernels with the instructions themselves; only the system's permission is asked for."""
    monkeypatch.setenv(VARIABLE, BASE)
    monkeypatch.setenv(FLAGS_VARIABLE, "-DQUIRE_AMX=1")
    compiled = again(library.LIBRARY)
    compiled.load()
    return compiled


@pytest.mark.skipif(AMX.needs <= cpu_flags(), reason="this processor has AMX")
def test_without_the_systems_permission_avx512_multiplies(monkeypatch, real, caplog):
    monkeypatch.setattr(library, "LIBRARY", real)
    has_fused = library.BYTE_FLAGS[BASE] in cpu_flags()
    expected = library.kind_of_products(INT8_DOT)
    assert expected == (library.FUSED_PRODUCTS if has_fused else library.NARROW_PRODUCTS)
    monkeypatch.setattr(library, "here", lambda: AMX)
    for _ in range(2):
        assert library.kind_of_products(INT8_DOT) == expected
    (message,) = (record.message for record in caplog.records if "AMX" in record.message)
    assert re.fullmatch(r"products of linear layers use AVX-512 instead of AMX: \w.*", message)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="there is no objdump")
def test_the_instructions_are_in_the_kernels_of_their_set_only(monkeypatch, real):
    found = functions_of(real)
    if not any("tmm" in code for code in found):
        pytest.skip("the compiler has no AMX")
    products = [code for code in found if "tilestored" in code]
    assert len(products) == 4  # of bytes and of pairs, for one register of rows and for two
    for name in ("tdpbf16ps", "tdpbsud"):
        assert sorted(code.count(name) for code in products) == [0, 0, 4, 8], name
    for name in ("ldtilecfg", "tilerelease"):
        assert any(name in code for code in found), name
    monkeypatch.delenv(FLAGS_VARIABLE)
    use_set(monkeypatch, library, BASE)
    assert not any("tmm" in code or "tile" in code for code in functions_of(library.LIBRARY))


def functions_of(compiled: NativeLibrary) -> list[str]:
    """Return the disassembly of each function."""
    command = ["objdump", "-d", "--no-show-raw-insn", compiled.load()._name]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return text.split("\n\n")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(int8_t)x.rows", "(uint8_t)x.rows"),
        ("return flushed(x);", "return 1.001f * flushed(x);"),
    ],
)
def test_products_that_differ_on_a_processor_are_not_used(
    monkeypatch, tmp_path, caplog, right, wrong
):
    """The kernels run on processors that no test has seen."""
    broken = emulated_library(tmp_path)
    emulator = tmp_path / EMULATOR.name
    text = emulator.read_text()
    assert right in text
    emulator.write_text(text.replace(right, wrong))
    use_emulated(monkeypatch, broken)
    monkeypatch.setattr(library, "_LOGGED", LoggedReasons())
    assert library.kind_of_products(INT8_DOT) == library.FUSED_PRODUCTS
    assert "its products differ from those of AVX-512" in caplog.text
