"""Activations against those of transformers in float64."""

from dataclasses import replace

import pytest
import torch
from kernel_device import BY_TORCH_OR_KERNEL
from model_parts import CONTEXT
from torch import Tensor
from transformers.activations import ACT2FN

from quire.errors import UnsupportedModelError
from quire.layers import (
    XIELU,
    Activation,
    GatedActivation,
    GeluTanhAndMul,
    SiluAndMul,
    make_activation,
)
from quire.layers.activation_names import ACTIVATIONS

NAMES = sorted(set(ACTIVATIONS) & set(ACT2FN) - {"xielu"})
HALF_ULP = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
BATCH_INVARIANT = pytest.mark.parametrize("batch_invariant", [False, True])


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reference(name: str, x: Tensor) -> Tensor:
    return ACT2FN[name](x.double())


@pytest.mark.parametrize("name", NAMES)
@BATCH_INVARIANT
@BY_TORCH_OR_KERNEL
def test_an_activation_is_that_of_transformers(context, batch_invariant, name):
    x = numbers(3, 21)
    expected = reference(name, x).float()
    layer = Activation(name, replace(context, batch_invariant=batch_invariant))
    torch.testing.assert_close(layer(x), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
@BATCH_INVARIANT
@BY_TORCH_OR_KERNEL
def test_the_first_half_is_the_gate(context, batch_invariant, name):
    gate_up = numbers(3, 42)
    expected = (reference(name, gate_up[:, :21]) * gate_up[:, 21:].double()).float()
    layer = GatedActivation(name, replace(context, batch_invariant=batch_invariant))
    torch.testing.assert_close(layer(gate_up), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", HALF_ULP)
@BATCH_INVARIANT
def test_half_precision_is_rounded_once(batch_invariant, dtype, name):
    context = replace(CONTEXT, dtype=dtype, batch_invariant=batch_invariant)
    x = numbers(4, 21).to(dtype)
    found = Activation(name, context)(x.clone())
    assert found.dtype is dtype
    rtol = 1.01 * HALF_ULP[dtype]
    torch.testing.assert_close(found.double(), reference(name, x), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_in_batch_invariant_mode_an_element_is_the_same_wherever_it_stands(name):
    layer = Activation(name, replace(CONTEXT, batch_invariant=True))
    x = numbers(1, 1003)
    whole = layer(x.clone())
    for start in (1, 7, 990):
        assert torch.equal(layer(x[:, start:].clone()), whole[:, start:])


def xielu(context, dtype: torch.dtype = torch.float32, **stored: Tensor) -> XIELU:
    layer = XIELU(replace(context, dtype=dtype))
    for name, value in stored.items():
        layer.load_weight(name, value, name if name.startswith("alpha") else "")
    layer.finish_loading()
    return layer


def stored_coefficients() -> dict[str, Tensor]:
    return {
        "alpha_p": torch.tensor([0.3]),
        "alpha_n": torch.tensor([-1.7]),
        "beta": torch.tensor(0.37),
        "eps": torch.tensor(-1e-3),
    }


@BY_TORCH_OR_KERNEL
def test_the_coefficients_of_xielu_are_those_of_the_checkpoint(context):
    stored = stored_coefficients()
    theirs = ACT2FN["xielu"].double()
    theirs.load_state_dict(stored)
    x = torch.cat((numbers(3, 21), torch.tensor([[-1e-4], [0.0], [-50.0]])), 1)
    expected = theirs(x.double()).detach().float()
    torch.testing.assert_close(xielu(context, **stored)(x.clone()), expected, rtol=2e-6, atol=1e-6)


def test_xielu_has_the_usual_constants_unless_the_checkpoint_has_others():
    learned = {name: stored_coefficients()[name] for name in ("alpha_p", "alpha_n")}
    layer = xielu(CONTEXT, **learned)
    assert layer.coefficients[2:].tolist() == pytest.approx([0.5, -1e-6])
    optional = layer.optional_weights("model.layers.0.mlp.act_fn")
    assert optional == {
        "model.layers.0.mlp.act_fn.beta": "beta",
        "model.layers.0.mlp.act_fn.eps": "eps",
    }
    shapes = {name: layer.checkpoint_shape(name, "") for name in stored_coefficients()}
    assert shapes == {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}


def test_xielu_is_rounded_once():
    stored = stored_coefficients()
    x = numbers(4, 21).bfloat16()
    theirs = ACT2FN["xielu"].double()
    theirs.load_state_dict(stored)
    found = xielu(CONTEXT, torch.bfloat16, **stored)(x.clone())
    torch.testing.assert_close(found.double(), theirs(x.double()), rtol=1.01 * 2**-8, atol=1e-6)


@pytest.mark.parametrize(
    ("layer_class", "name"), [(SiluAndMul, "silu"), (GeluTanhAndMul, "gelu_new")]
)
def test_the_usual_gates_have_classes_of_their_own(layer_class, name):
    gate_up = numbers(3, 42)
    found = layer_class(CONTEXT)(gate_up)
    assert torch.equal(found, GatedActivation(name, CONTEXT)(gate_up))


def test_the_layer_of_an_activation_is_found_by_its_name():
    assert isinstance(make_activation("silu", is_gated=True, context=CONTEXT), GatedActivation)
    assert isinstance(make_activation("relu2", is_gated=False, context=CONTEXT), Activation)
    assert isinstance(make_activation("xielu", is_gated=False, context=CONTEXT), XIELU)
    with pytest.raises(UnsupportedModelError, match="'xielu' is supported without a gate only"):
        make_activation("xielu", is_gated=True, context=CONTEXT)
    with pytest.raises(UnsupportedModelError, match="activation 'mish' is not supported"):
        make_activation("mish", is_gated=False, context=CONTEXT)


@BATCH_INVARIANT
@pytest.mark.parametrize("name", NAMES)
def test_native_activations_are_the_same(name, batch_invariant):
    context = replace(CONTEXT, batch_invariant=batch_invariant)
    x = numbers(3, 42)
    for layer_class in (Activation, GatedActivation):
        native = layer_class(name, replace(context, kernels="native"))
        native.finish_loading()
        found, expected = native(x.clone()), layer_class(name, context)(x.clone())
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-6)


def test_the_native_xielu_is_the_same():
    x, stored = numbers(3, 42), stored_coefficients()
    native = xielu(replace(CONTEXT, kernels="native"), **stored)
    assert native.kernel is not None
    torch.testing.assert_close(native(x.clone()), xielu(CONTEXT, **stored)(x.clone()))
