"""Styles of sharding, from the plans of transformers."""

import torch
from transformers_families import tiny_config

from quire_models.transformers_fallback.attention_calls import AttentionCall, MaskKind
from quire_models.transformers_fallback.shard_plan import REPLICATED, ShardPlan, ShardStyle


def plan(model_type, **values):
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return ShardPlan(AutoModelForCausalLM.from_config(tiny_config(model_type, **values)))


def test_projections_are_sharded_by_outputs_and_the_last_one_by_inputs():
    llama = plan("llama")
    assert llama.style("model.layers.3.self_attn.q_proj") == ShardStyle("outputs")
    assert llama.style("model.layers.3.self_attn.o_proj") == ShardStyle("inputs")


def test_a_norm_over_the_whole_projection_needs_whole_outputs():
    olmo = plan("olmo2")
    assert olmo.style("model.layers.0.self_attn.q_proj") == ShardStyle("outputs", True)
    assert olmo.style("model.layers.0.self_attn.o_proj") == ShardStyle("inputs", True)


def test_what_has_no_style_is_replicated():
    assert plan("llama").style("model.layers.0.self_attn.r_proj") is REPLICATED
    assert plan("llama").style("model.layers.0.x.self_attn.q_proj") is REPLICATED
    assert plan("gpt2").style("transformer.h.0.attn.c_attn") is REPLICATED


def test_a_module_with_a_sharded_parameter_of_its_own_keeps_its_linear_layers_whole():
    beam = plan("beam")
    assert beam.style("model.layers.0.self_attn.q_proj") is REPLICATED
    assert beam.style("model.layers.0.mlp.gate_proj") == ShardStyle("outputs")


def test_a_norm_with_a_row_for_each_head_keeps_the_linear_layers_beside_it_whole():
    cohere = plan("cohere", use_qk_norm=True)
    assert cohere.style("model.layers.0.self_attn.q_proj") is REPLICATED
    assert cohere.style("model.layers.0.self_attn.o_proj") is REPLICATED
    assert cohere.style("model.layers.0.mlp.gate_proj") == ShardStyle("outputs")
    assert plan("cohere").style("model.layers.0.self_attn.q_proj") == ShardStyle("outputs")


def test_sinks_leave_the_linear_layers_of_their_module_sharded():
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(tiny_config("granite_swa"))
    path = "model.layers.0.self_attn"
    num_outputs = model.get_submodule(f"{path}.q_proj").out_features
    assert ShardPlan(model).style(f"{path}.q_proj") is REPLICATED
    calls = [_call(path, 1, num_outputs, "sinks")]
    assert ShardPlan(model, calls).style(f"{path}.q_proj").dim == "outputs"


def test_attention_whose_queries_have_no_style_keeps_its_linear_layers_whole():
    from transformers import AutoModelForCausalLM

    for q_lora_rank, style in ((None, REPLICATED), (8, ShardStyle("inputs"))):
        with torch.device("meta"):
            config = tiny_config("glm4_moe_lite", q_lora_rank=q_lora_rank)
            model = AutoModelForCausalLM.from_config(config)
        path = "model.layers.0.self_attn"
        attention = model.get_submodule(path)
        calls = [_call(path, config.num_attention_heads, attention.qk_head_dim)]
        assert ShardPlan(model, calls).style(f"{path}.o_proj") == style


def _call(path, num_heads, key_dim, sinks=None):
    return AttentionCall(
        path=path, num_heads=num_heads, num_kv_heads=num_heads, key_dim=key_dim, value_dim=key_dim,
        scale=1.0, soft_cap=None, mask=MaskKind("causal"), sinks=sinks,
    )  # fmt: skip
