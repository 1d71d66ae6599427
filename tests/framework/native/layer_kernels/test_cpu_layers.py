"""The C++ layers against the formulas in float64, for every instruction set of this machine."""

import pytest
import torch
from native_libraries import SETS_HERE, failing_library, use_set
from torch import Tensor
from torch.nn import functional

from quire.native.layer_kernels import cpu_layers
from quire.native.layer_kernels.cpu_layers import (
    AddRMSNorm,
    GatedActivation,
    HeadRMSNorm,
    LogitMask,
)
from quire.worker.sampling.logit_masks import mask_logits

EPS = 1e-5
SIZES = [1, 7, 8, 15, 16, 17, 64, 100, 1024, 5121]


@pytest.fixture(params=SETS_HERE, autouse=True)
def _each_set(request, monkeypatch):
    use_set(monkeypatch, cpu_layers, request.param)


def numbers(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def by_formula(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def assert_close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=2e-7)


def gelu(gate: Tensor) -> Tensor:
    return functional.gelu(gate, approximate="tanh")


def activation(name: str) -> GatedActivation:
    library = cpu_layers.LIBRARY.load()
    functions = {"silu": library.silu_and_mul, "gelu": library.gelu_tanh_and_mul}
    return GatedActivation(functions[name])


ACTIVATIONS = pytest.mark.parametrize(
    ("name", "reference"), [("silu", functional.silu), ("gelu", gelu)]
)


@pytest.mark.parametrize("size", SIZES)
def test_the_norm_is_that_of_the_sum(size):
    x, residual, weight = (
        numbers(3, size),
        numbers(3, size, seed=1, spread=3),
        numbers(size, seed=2),
    )
    expected = x + residual
    normed, total = AddRMSNorm(weight, EPS)(x, residual)
    assert torch.equal(total, expected)
    assert_close(normed, by_formula(total, weight))


def test_the_sum_and_its_norm_lie_where_the_inputs_did():
    x, residual, weight = numbers(3, 40), numbers(3, 40, seed=1), numbers(40, seed=2)
    normed, total = AddRMSNorm(weight, EPS)(x, residual)
    assert (normed.data_ptr(), total.data_ptr()) == (x.data_ptr(), residual.data_ptr())


def test_inputs_whose_rows_lie_apart_stay_as_they_are():
    x, residual, weight = numbers(3, 80), numbers(3, 80, seed=1), numbers(40, seed=2)
    normed, total = AddRMSNorm(weight, EPS)(x[:, 40:], residual[:, :40])
    assert torch.equal(total, x[:, 40:] + residual[:, :40])
    assert_close(normed, by_formula(total, weight))
    assert torch.equal(x, numbers(3, 80))
    assert torch.equal(residual, numbers(3, 80, seed=1))


@pytest.mark.parametrize("size", SIZES)
def test_without_a_residual_the_input_is_the_sum(size):
    x, weight = numbers(4, size), numbers(size, seed=2)
    normed, total = AddRMSNorm(weight, EPS)(x, None)
    assert total is x
    assert_close(normed, by_formula(x, weight))


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_eps_is_added_to_the_mean_square(eps):
    x, weight = numbers(2, 48, spread=0.1), numbers(48, seed=1)
    assert_close(AddRMSNorm(weight, eps)(x, None)[0], by_formula(x, weight, eps))


@pytest.mark.parametrize("size", [1e-25, 1e-15, 1e15, 1e25])
def test_very_small_and_very_large_numbers_keep_their_direction(size):
    x, weight = numbers(2, 64) * size, torch.ones(64)
    eps = 0.0 if size < 1 else EPS
    assert_close(AddRMSNorm(weight, eps)(x, None)[0], by_formula(x, weight, eps))


@pytest.mark.parametrize("size", [1, 8, 20, 64, 128])
def test_heads_have_norms_of_their_own_and_tokens_may_lie_apart(size):
    heads, weight = numbers(5, 9, size)[:, 1:7], numbers(6, size, seed=1)
    normed = HeadRMSNorm(weight, EPS)(heads)
    assert normed.is_contiguous()
    assert_close(normed, by_formula(heads, weight))
    turned = heads.contiguous().transpose(0, 1)[:6]
    weight = numbers(5, size, seed=1)
    assert_close(HeadRMSNorm(weight, EPS)(turned), by_formula(turned, weight))


@pytest.mark.parametrize("size", SIZES)
@ACTIVATIONS
def test_the_gate_stands_first_and_is_activated(name, reference, size):
    gate_up = numbers(3, 2 * size, spread=3)
    gate, up = gate_up.double().chunk(2, -1)
    assert_close(activation(name)(gate_up), reference(gate) * up)


def test_the_silu_is_right_to_a_few_units_in_the_last_place():
    gate = torch.linspace(-80, 80, 100_003)[None]
    found = activation("silu")(torch.cat((gate, torch.ones_like(gate)), 1)).double()
    expected = functional.silu(gate.double())
    error = ((found - expected) / expected)[expected != 0].abs()
    assert error.max() < 4 * 2**-24


@ACTIVATIONS
def test_gates_far_from_zero_are_shut_or_open(name, reference):
    gate = torch.tensor([[-1e10, -3e4, -100.0, -0.0, 100.0, 3e4]])
    out = activation(name)(torch.cat((gate, torch.full_like(gate, 2.0)), 1))
    assert out[0].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.0, 200.0, 6e4], abs=1e-30)


@ACTIVATIONS
def test_nan_stays_nan_and_affects_no_other_element(name, reference):
    gate_up = numbers(2, 40)
    expected = activation(name)(gate_up)
    gate_up[0, 3] = gate_up[1, 24] = torch.nan
    out = activation(name)(gate_up)
    assert out.isnan().nonzero().tolist() == [[0, 3], [1, 4]]
    assert torch.equal(out[~out.isnan()], expected[~out.isnan()])


def test_a_row_of_nan_affects_no_other_row():
    x, weight = numbers(3, 40), numbers(40, seed=1)
    expected = AddRMSNorm(weight, EPS)(x, None)[0]
    x[1, 5] = torch.nan
    found = AddRMSNorm(weight, EPS)(x, None)[0]
    assert found[1].isnan().all()
    assert torch.equal(found[::2], expected[::2])


@pytest.mark.parametrize("size", [7, 16, 1000])
def test_a_number_is_the_same_wherever_it_stands(size):
    """In any batch, by any number of threads and, for activations, in any column."""
    x, residual, weight = numbers(200, size), numbers(200, size, seed=1), numbers(size, seed=2)
    gate_up = numbers(200, 2 * size, spread=4)
    norm, heads = AddRMSNorm(weight, EPS), HeadRMSNorm(weight[None], EPS)
    whole, by_head = norm(x.clone(), residual.clone())[0], heads(x[:, None])
    for row in (0, 100, 199):
        one = slice(row, row + 1)
        assert torch.equal(norm(x[one].clone(), residual[one].clone())[0][0], whole[row])
        assert torch.equal(heads(x[one, None])[0], by_head[row])
        for name in ("silu", "gelu"):
            out = activation(name)(gate_up)
            assert torch.equal(activation(name)(gate_up[one])[0], out[row])
            each = gate_up[row].view(2, size).t().contiguous()  # [size, 2]: a gate and its up
            assert torch.equal(activation(name)(each)[:, 0], out[row])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(monkeypatch, threads):
    x, residual, weight = numbers(70, 3000), numbers(70, 3000, seed=1), numbers(3000, seed=2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    normed, total = AddRMSNorm(weight, EPS)(x.clone(), residual.clone())
    assert torch.equal(total, x + residual)
    assert_close(normed, by_formula(total, weight))
    gate, up = x.double().chunk(2, -1)
    assert_close(activation("silu")(x), functional.silu(gate) * up)
    heads = x.view(70, 30, 100)
    weight = weight.view(30, 100)
    assert_close(HeadRMSNorm(weight, EPS)(heads), by_formula(heads, weight))


def test_of_no_rows_there_is_nothing():
    x = numbers(0, 64)
    normed, total = AddRMSNorm(torch.ones(64), EPS)(x, x)
    assert normed.shape == total.shape == (0, 64)
    assert activation("gelu")(x).shape == (0, 32)
    assert HeadRMSNorm(torch.ones(2, 8), EPS)(numbers(0, 2, 8)).shape == (0, 2, 8)


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 2048, 70_005])
def test_masks_do_what_plain_torch_does(vocab_size):
    random = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(5, vocab_size + 3, generator=random)[:, :vocab_size]
    num_words = -(-vocab_size // 32) + 1
    words = torch.randint(-(2**31), 2**31, (3, num_words), generator=random).int()
    words[1], words[2, ::2] = -1, 0
    rows = torch.tensor([4, 0, 2])
    expected = logits.clone()
    mask_logits(expected, rows, words)
    LogitMask()(logits, rows, words)
    assert torch.equal(logits, expected)


def test_without_a_compiler_they_are_not_available(monkeypatch, tmp_path):
    assert cpu_layers.LIBRARY.is_available()
    monkeypatch.setattr(cpu_layers, "LIBRARY", failing_library(tmp_path))
    assert not cpu_layers.LIBRARY.is_available()


def test_only_weights_that_can_be_read_are_bound():
    for weight in (torch.ones(4, dtype=torch.bfloat16), torch.ones(8)[::2]):
        with pytest.raises(ValueError, match="contiguous float32 on the CPU"):
            AddRMSNorm(weight, 1e-6)
    with pytest.raises(ValueError, match="contiguous float32 on the CPU"):
        HeadRMSNorm(torch.ones(4, 2).mT, 1e-6)


@pytest.mark.parametrize("x", [torch.ones(2, 5), torch.ones(2, 4, dtype=torch.bfloat16)], ids=str)
def test_rows_of_another_type_or_width_are_refused(x):
    norm, good = AddRMSNorm(torch.ones(4), 1e-6), torch.ones(2, 4)
    with pytest.raises(ValueError, match=r"rows must be float32 \[\.\.\., 4\], got"):
        norm(x, None)
    with pytest.raises(ValueError, match=r"the residual must be float32 \[2, 4\], got"):
        norm(good, x)
    with pytest.raises(ValueError, match=r"heads must be float32 \[T, 3, 4\], got"):
        HeadRMSNorm(torch.ones(3, 4), 1e-6)(x.unsqueeze(1).expand(-1, 3, -1))
    with pytest.raises(ValueError, match=r"rows must be float32 \[\.\.\., 4\], got"):
        GatedActivation(cpu_layers.LIBRARY.load().silu_and_mul)(good.double())
    with pytest.raises(
        ValueError, match=r"rows must be float32 \[\.\.\., 4\], got torch.float32 \[2, 3\]"
    ):
        activation("silu")(torch.ones(2, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_what_the_program_calls_its_default_type_does_not_matter(dtype):
    gate_up, heads = numbers(3, 64), numbers(3, 2, 16)
    norm = HeadRMSNorm(torch.ones(2, 16), 1e-6)
    expected = activation("silu")(gate_up), norm(heads)
    torch.set_default_dtype(dtype)
    try:
        found = activation("silu")(gate_up), norm(heads)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("logits", "rows", "words", "message"),
    [
        (
            torch.ones(2, 40).double(),
            [0],
            torch.zeros(1, 2).int(),
            r"rows must be float32 \[\.\.\., 40\]",
        ),
        (torch.ones(2, 40), [0.0], torch.zeros(1, 2).int(), "must be int64 and words int32, got"),
        (torch.ones(2, 40), [0], torch.zeros(1, 2).long(), "must be int64 and words int32, got"),
        (torch.ones(2, 40), [0], torch.zeros(1, 1).int(), r"\[1, 1\] words do not match 1 rows"),
        (torch.ones(2, 40), [0, 1], torch.zeros(1, 2).int(), r"\[1, 2\] words do not match 2 rows"),
        (
            torch.ones(40, 2).mT,
            [0],
            torch.zeros(1, 2).int(),
            "each row of the logits must be contiguous",
        ),
    ],
)
def test_masks_that_do_not_fit_the_logits_are_refused(logits, rows, words, message):
    with pytest.raises(ValueError, match=message):
        LogitMask()(logits, torch.tensor(rows), words)
