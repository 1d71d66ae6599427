"""Names of checkpoints for transformers models, and stacks of experts as views."""

import pytest
import torch
from torch import nn
from transformers_families import tiny_config

from quire.errors import UnsupportedModelError
from quire_models.transformers_fallback.checkpoint_names import (
    CheckpointNames,
    ExpertStack,
    check_conversions,
    unstack,
)


def on_meta(model_type):
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(tiny_config(model_type))


def test_modules_are_renamed_as_transformers_renames_them():
    names = CheckpointNames(on_meta("mixtral"))
    given = "model.layers.1.block_sparse_moe.experts.3.w1.weight"
    assert names.model_name(given) == "model.layers.1.mlp.experts.3.w1.weight"
    gate = "model.layers.1.block_sparse_moe.gate.weight"
    assert names.model_name(gate) == "model.layers.1.mlp.gate.weight"


def test_a_checkpoint_of_the_body_alone_gets_the_bodys_name():
    names = CheckpointNames(on_meta("gpt2"))
    assert names.model_name("h.0.ln_1.bias") == "transformer.h.0.ln_1.bias"
    assert names.model_name("transformer.h.0.ln_1.bias") == "transformer.h.0.ln_1.bias"


def test_what_transformers_ignores_is_left_out_unless_the_model_has_it():
    names = CheckpointNames(on_meta("gpt2"))
    assert names.model_name("transformer.h.0.attn.bias") is None
    assert names.model_name("transformer.h.0.attn.c_attn.bias") == (
        "transformer.h.0.attn.c_attn.bias"
    )


def test_an_unknown_tensor_keeps_its_name_and_is_reported_by_it():
    assert CheckpointNames(on_meta("gpt2")).model_name("acme.weight") == "acme.weight"


def test_stacks_name_the_matrices_of_an_expert_in_the_order_of_their_rows():
    stacks = {stack.path: stack for stack in CheckpointNames(on_meta("mixtral")).stacks}
    stack = stacks["model.layers.0.mlp.experts.gate_up_proj"]
    assert stack.sources == (
        "model.layers.0.mlp.experts.*.w1.weight",
        "model.layers.0.mlp.experts.*.w3.weight",
    )
    assert len(list(stack.names(4))) == 8
    assert len(stacks) == 8  # two in each of four layers


def test_matrices_of_a_stack_are_views_of_it():
    model = nn.Module()
    model.experts = nn.Module()
    stacked = torch.arange(24.0).view(2, 4, 3)
    model.experts.up = nn.Parameter(stacked, requires_grad=False)
    unstack(model, ExpertStack("experts.up", ("experts.*.a.weight", "experts.*.b.weight")))
    names = {name for name, _ in model.named_parameters()}
    assert names == {f"experts.{expert}.{part}.weight" for expert in (0, 1) for part in "ab"}
    model.get_parameter("experts.1.b.weight").fill_(-1.0)
    assert model.experts.up[1, 2:].eq(-1.0).all()
    assert model.experts.up[1, :2].tolist() == stacked[1, :2].tolist()


def test_a_conversion_other_than_stacking_is_refused():
    with pytest.raises(UnsupportedModelError, match="while it loads"):
        check_conversions(on_meta("hrm_text"))
