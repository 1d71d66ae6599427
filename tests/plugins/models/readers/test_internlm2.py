"""InternLM 2, which transformers does not have: Llama's weights under its names."""

import json

import pytest
import torch
from model_parts import load_model, make_model, random_tokens
from safetensors.torch import save_file

from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import difference, logits_of
from quire.worker.loading.weight_loading import load_weights

NAMES = {
    "model.embed_tokens": "model.tok_embeddings",
    "lm_head": "output",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}
HEAD_DIM = 16


def renamed(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def fused(weights, layer, kind, num_kv_heads):
    """Return q, k and v of a layer as InternLM 2 stores them: the heads of each group together."""
    parts = [weights[f"model.layers.{layer}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
    groups = [part.unflatten(0, (num_kv_heads, -1, HEAD_DIM)) for part in parts]
    return torch.cat(groups, 1).flatten(0, 2).contiguous()


@pytest.mark.parametrize("bias", [False, True])
def test_logits_are_those_of_llama_with_the_same_weights(tmp_path, bias):
    llama = write_checkpoint(tmp_path / "llama", "LlamaForCausalLM", attention_bias=bias)
    weights = {
        renamed(name): tensor
        for name, tensor in llama.weights.items()
        if not any(f".{part}_proj." in name and "self_attn" in name for part in "qkv")
    }
    for layer in range(llama.config["num_hidden_layers"]):
        for kind in ("weight", "bias")[: 1 + bias]:
            name = f"model.layers.{layer}.attention.wqkv.{kind}"
            weights[name] = fused(llama.weights, layer, kind, llama.config["num_key_value_heads"])
    folder = tmp_path / "internlm2"
    folder.mkdir()
    config = llama.config | {"architectures": ["InternLM2ForCausalLM"], "bias": bias}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    model = make_model(config)
    load_weights(model, folder)
    token_ids = random_tokens(30)
    assert difference(logits_of(model, token_ids), logits_of(load_model(llama), token_ids)) < 1e-6
