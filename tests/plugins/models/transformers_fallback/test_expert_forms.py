"""Forms of experts, and the activations of transformers that quire has as well."""

import pytest
import torch
from transformers_families import tiny_config

from quire_models.transformers_fallback.expert_forms import (
    ExpertsForm,
    TransformersGate,
    expert_forms,
)


def form_of(model_type: str, **values) -> ExpertsForm:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config(model_type, **values))
    forms = expert_forms(model)
    assert len({form.path for form in forms}) == len(forms) > 1
    return forms[0]


def test_the_form_is_read_from_the_module():
    form = form_of("mixtral")
    assert (form.num_experts, form.hidden_size, form.width) == (4, 64, 96)
    assert (form.has_gate, form.has_bias, form.is_transposed) == (True, False, False)
    transposed = form_of("gpt_oss")
    assert (transposed.num_experts, transposed.hidden_size, transposed.width) == (4, 64, 96)
    assert transposed.is_transposed
    assert transposed.is_interleaved
    assert transposed.has_bias


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("silu", "silu"),
        ("gelu", "gelu"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("relu", "relu"),
        ("tanh", None),
    ],
)
def test_an_activation_is_known_by_its_values(name, same):
    assert form_of("mixtral", hidden_act=name).activation == same


def test_another_gate_is_left_to_transformers_in_the_layout_that_it_reads():
    form = form_of("gpt_oss")
    assert form.activation is None
    gate, up = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1)) * 4
    expected = (up.clamp(-7, 7) + 1) * (g := gate.clamp(max=7.0)) * torch.sigmoid(1.702 * g)
    torch.testing.assert_close(TransformersGate(form)(torch.cat((gate, up), -1)), expected)


def test_experts_without_the_interface_are_left_out():
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config("llama4_text"))
    assert expert_forms(model) == ()
