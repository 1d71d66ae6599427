"""Names of checkpoints for transformers models, and rules for the weights of experts."""

import pytest
import torch
from transformers_families import tiny_config

from quire.errors import UnsupportedModelError
from quire_models.transformers_fallback.checkpoint_names import (
    CheckpointNames,
)
from quire_models.transformers_fallback.expert_forms import expert_forms


def on_meta(model_type):
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(tiny_config(model_type))


def names_of(model_type):
    model = on_meta(model_type)
    return CheckpointNames(model, expert_forms(model))


def test_modules_are_renamed_as_transformers_renames_them():
    names = names_of("mixtral")
    given = "model.layers.1.block_sparse_moe.experts.3.w1.weight"
    assert names.model_name(given) == "model.layers.1.mlp.experts.3.w1.weight"
    gate = "model.layers.1.block_sparse_moe.gate.weight"
    assert names.model_name(gate) == "model.layers.1.mlp.gate.weight"


def test_a_checkpoint_of_the_body_alone_gets_the_bodys_name():
    names = names_of("gpt2")
    assert names.model_name("h.0.ln_1.bias") == "transformer.h.0.ln_1.bias"
    assert names.model_name("transformer.h.0.ln_1.bias") == "transformer.h.0.ln_1.bias"


def test_what_transformers_ignores_is_left_out_unless_the_model_has_it():
    names = names_of("gpt2")
    assert names.model_name("transformer.h.0.attn.bias") is None
    assert names.model_name("transformer.h.0.attn.c_attn.bias") == (
        "transformer.h.0.attn.c_attn.bias"
    )


def test_an_unknown_tensor_keeps_its_name_and_is_reported_by_it():
    assert names_of("gpt2").model_name("acme.weight") == "acme.weight"


EXPERTS = "model.layers.0.mlp.experts"


def test_matrices_of_experts_are_mapped_from_the_checkpoints_and_from_stacks():
    rules = [rule for rule in names_of("mixtral").rules if rule.checkpoint.startswith(EXPERTS)]
    gate, up, down = (
        f"{EXPERTS}.{{expert}}.{part}.weight" for part in ("gate_proj", "up_proj", "down_proj")
    )
    assert [(rule.checkpoint, rule.parts) for rule in rules] == [
        (f"{EXPERTS}.{{expert}}.w1.weight", (gate,)),
        (f"{EXPERTS}.{{expert}}.w3.weight", (up,)),
        (f"{EXPERTS}.gate_up_proj", (gate, up)),
        (f"{EXPERTS}.{{expert}}.w2.weight", (down,)),
        (f"{EXPERTS}.down_proj", (down,)),
    ]


def test_rows_that_alternate_are_a_group_each():
    rules = {rule.checkpoint: rule for rule in names_of("gpt_oss").rules}
    assert rules[f"{EXPERTS}.gate_up_proj"].groups == 96
    assert rules[f"{EXPERTS}.gate_up_proj"].transposed
    assert rules[f"{EXPERTS}.gate_up_proj_bias"].groups == 96
    assert rules[f"{EXPERTS}.down_proj"].groups == 1


def test_a_conversion_other_than_stacking_is_refused():
    with pytest.raises(UnsupportedModelError, match="while it loads"):
        names_of("hrm_text")


def test_stacks_of_experts_that_quire_cannot_compute_are_refused():
    with pytest.raises(UnsupportedModelError, match=r"experts\.gate_up_proj while it loads"):
        CheckpointNames(on_meta("mixtral"), ())
