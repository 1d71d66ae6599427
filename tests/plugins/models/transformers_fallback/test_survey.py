"""Surveys of transformers models: what they find, and which models they refuse."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers_families import SOFT_CAPS, tiny_config

from quire.errors import UnsupportedModelError
from quire_models.transformers_fallback.meta_model import build_on_meta
from quire_models.transformers_fallback.survey import NUM_TOKENS, Survey, TokenMixing, survey

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
REFUSED = {
    "bart": ("encoder-decoder", {}),
    "bert": ("neither causal over the whole context", {}),
    "bloom": ("takes no positions", {}),
    "deepseek_v32": ("unknown types indexed_attention", {"head_dim": 8, "num_key_value_heads": 4}),
    "diffllama": ("8 times", {}),
    "doge": ("a mask of its own", {}),
    "falcon": ("0 modules call", {}),
    "gemma3": ("several modalities", {}),
    "lfm3": ("unknown types conv", {}),
    "llama": ("of the kind dynamic", {"rope_parameters": DYNAMIC}),
    "llama4_text": ("numbers the tokens of a batch itself", {}),
    "mamba": ("a state in transformers' cache", {}),
    "mpt": (r"configs inside \(attn_config\)", {}),
    "phi3": ("of the kind longrope", {"rope_parameters": LONGROPE}),
    "roberta": ("padding token", {"is_decoder": True, "pad_token_id": 1}),
}


def architecture(model_type: str) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    return name if isinstance(name, str) else name[0]


def surveyed(model_type: str, **values) -> Survey:
    config = tiny_config(model_type, **values).to_dict()
    as_written = json.loads(json.dumps(config, default=str))
    as_written["architectures"] = [architecture(model_type)]
    return survey(build_on_meta(as_written, torch.float32, None))


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_model_that_would_be_wrong_is_refused_with_the_reason(model_type):
    reason, values = REFUSED[model_type]
    with pytest.raises(UnsupportedModelError, match=reason):
        surveyed(model_type, **values)


def test_each_layers_window_is_that_of_its_mask():
    found = surveyed("gemma2", **SOFT_CAPS)
    assert [call.mask.size for call in found.calls] == [7, None, 7, None]
    assert [call.mask.name for call in found.calls[:2]] == ["sliding_window", "full_attention"]
    assert {call.soft_cap for call in found.calls} == {5.0}


def test_chunks_are_found_though_transformers_names_no_chunk_size():
    found = surveyed("llama4_text", attn_temperature_tuning=False)
    assert [(call.mask.name, call.mask.size) for call in found.calls] == [
        *[("chunked_local_attention", 16)] * 3,
        ("full_attention", None),
    ]


def test_heads_of_different_sizes_are_cached_in_the_larger_one():
    call = surveyed("deepseek_v3", head_dim=8, num_key_value_heads=4).calls[0]
    assert (call.key_dim, call.value_dim, call.head_dim) == (24, 12, 24)


def test_sinks_are_named_by_their_parameter():
    assert {call.sinks for call in surveyed("gpt_oss").calls} == {"sinks"}
    assert {call.sinks for call in surveyed("llama").calls} == {None}


def test_the_scale_is_the_one_that_the_layer_passes():
    found = surveyed("granite", attention_multiplier=0.3)
    assert {call.scale for call in found.calls} == {0.3}


def test_sizes_that_are_divided_are_named_by_pattern():
    sizes = surveyed("llama").sharded_sizes
    assert sizes["outputs of model.layers.*.mlp.gate_proj"] == 96
    assert sizes["inputs of model.layers.*.self_attn.o_proj"] == 96
    assert len(sizes) == 7
    assert surveyed("gpt2").sharded_sizes == {}


def test_experts_are_counted_and_their_widths_named():
    found = surveyed("qwen3_moe")
    assert found.num_experts == 4
    assert found.expert_sizes == {"width of model.layers.*.mlp.experts": 32}
    assert surveyed("llama").num_experts == 0


def test_parameters_are_counted_once_with_the_buffers_of_checkpoints():
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_config("dots1"))
    tensors = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}
    assert surveyed("dots1").num_params == sum(each.numel() for each in tensors.values())
    tied = surveyed("gpt2")
    assert tied.has_tied_head
    assert tied.num_params < surveyed("gpt2", tie_word_embeddings=False).num_params


def test_a_model_type_that_transformers_does_not_have_is_refused():
    with pytest.raises(UnsupportedModelError, match="no model type 'acme'"):
        build_on_meta({"architectures": ["A"], "model_type": "acme"}, torch.float32, None)


def test_an_architecture_of_another_task_is_refused():
    config = {"architectures": ["LlamaForSequenceClassification"], "model_type": "llama"}
    with pytest.raises(UnsupportedModelError, match="no causal language model of that name"):
        build_on_meta(config, torch.float32, None)


def test_a_config_that_transformers_rejects_is_refused():
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": "wide"}
    with pytest.raises(UnsupportedModelError, match="does not accept this config"):
        build_on_meta(config, torch.float32, None)


@pytest.mark.parametrize("dtype", ["auto", "torch.bfloat16", "nonsense"])
def test_the_dtype_of_the_config_is_not_read_by_transformers(dtype):
    for key in ("dtype", "torch_dtype"):
        config = {**tiny_config("llama").to_dict(), key: dtype}
        config["architectures"] = ["LlamaForCausalLM"]
        model = build_on_meta(config, torch.float16, None)
        assert model.lm_head.weight.dtype is torch.float16


@pytest.mark.parametrize(
    ("model_type", "key"), [("llama", "num_hidden_layers"), ("gpt2", "n_layer")]
)
def test_a_number_of_layers_that_no_memory_holds_is_refused_at_once(model_type, key):
    config = {"architectures": [architecture(model_type)], "model_type": model_type, key: 10**9}
    with pytest.raises(UnsupportedModelError, match=rf"{key} in config\.json .* got 1000000000"):
        build_on_meta(config, torch.float32, None)


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: functional.conv1d(x.T[None], x.new_empty(4, 4, 2)),
        lambda x: x.cumsum(0),
        lambda x: x.roll(1, 0),
    ],
    ids=["convolution", "sum", "roll"],
)
def test_operators_that_combine_tokens_are_refused(mix):
    x = torch.empty(NUM_TOKENS, 4, device="meta")
    with (
        TokenMixing(nn.Module()),
        pytest.raises(UnsupportedModelError, match="outside of attention"),
    ):
        mix(x)


def test_a_count_of_the_tokens_is_refused_except_in_experts():
    class Counts(nn.Module):
        def forward(self, x):
            return torch.arange(len(x), device=x.device)

    model, x = nn.Module(), torch.empty(NUM_TOKENS, 4, device="meta")
    model.experts, model.other = Counts(), Counts()
    with TokenMixing(model):
        assert len(model.experts(x)) == NUM_TOKENS
        with pytest.raises(UnsupportedModelError, match="numbers the tokens"):
            model.other(x)
    assert len(model.experts._forward_hooks) == 0


def test_operators_on_each_token_are_not_refused():
    x = torch.empty(NUM_TOKENS, 4, device="meta")
    with TokenMixing(nn.Module()):
        assert (x @ x.new_empty(4, 3)).cumsum(1).softmax(-1).shape == (NUM_TOKENS, 3)
