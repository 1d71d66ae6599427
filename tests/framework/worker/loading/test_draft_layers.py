"""Multi-token-prediction layers are known by their names, and nothing else is."""

import pytest

from quire.worker.loading.draft_layers import DraftLayers

DEEPSEEK = {"num_hidden_layers": 61, "num_nextn_predict_layers": 1}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (DEEPSEEK, "model.layers.61.self_attn.q_a_proj.weight"),
        (DEEPSEEK, "model.layers.61.mlp.experts.3.up_proj.weight_scale_inv"),
        (DEEPSEEK, "model.layers.61.shared_head.head.weight"),
        ({"num_hidden_layers": 4, "num_mtp_modules": 3}, "model.layers.6.eh_proj.weight"),
        ({"num_hidden_layers": 2}, "mtp.layers.0.self_attn.q_proj.weight"),
        ({}, "mtp.fc.weight"),
        ({}, "model.mtp_block.0.mlp.up_proj.weight"),
        ({}, "model.mtp_layers.0.input_layernorm.weight"),
        ({}, "model.language_model.mtp.norm.weight"),
    ],
)
def test_a_draft_layer_is_known(config, name):
    assert name in DraftLayers(config)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (DEEPSEEK, "model.layers.60.self_attn.q_a_proj.weight"),
        (DEEPSEEK, "model.layers.62.self_attn.q_a_proj.weight"),
        ({"num_hidden_layers": 61}, "model.layers.61.self_attn.q_a_proj.weight"),
        ({"num_hidden_layers": 61, "num_nextn_predict_layers": 0}, "model.layers.61.a.weight"),
        ({"num_nextn_predict_layers": 1}, "model.layers.0.a.weight"),
        (DEEPSEEK, "model.layers.0.blocks.61.weight"),
        (DEEPSEEK, f"model.layers.{'9' * 5000}.weight"),
        ({}, "mtp"),
        ({}, "model.layers.0.mtp_gate.weight"),
        ({}, "model.mtpx.weight"),
    ],
)
def test_other_layers_are_not(config, name):
    assert name not in DraftLayers(config)
