"""Checkpoints of other formats generate what the same weights do in the layout of Hugging Face."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.cli.main import main
from quire.errors import CheckpointCorruptError
from quire.testing.checkpoints import write_checkpoint
from quire.worker.loading.formats.block_fp8 import multiply_blocks

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
PROMPTS = ["the quick brown fox", "a"]
BLOCK = (32, 32)
FP8 = {"quant_method": "fp8", "weight_block_size": list(BLOCK), "activation_scheme": "dynamic"}
MISTRAL = {
    "embed_tokens": "tok_embeddings", "lm_head": "output", "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
}  # fmt: skip


def generated(folder: Path) -> list[list[int]]:
    with LLM(str(folder), dtype="float32", kernels="torch", num_kv_blocks=64) as llm:
        return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY)]


def change_config(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture
def float8(tmp_path) -> tuple[Path, Path]:
    """A checkpoint with float8 layers, and the same one dequantized."""
    torch.manual_seed(0)
    written = write_checkpoint(tmp_path / "plain", "Qwen3ForCausalLM", num_hidden_layers=2)
    plain, packed = dict(written.weights), dict(written.weights)
    for name, tensor in written.weights.items():
        if name.endswith("_proj.weight"):
            weight = tensor.to(torch.float8_e4m3fn)
            scale = torch.rand([-(-size // 32) for size in tensor.shape]) + 0.5
            packed |= {name: weight, f"{name}_scale_inv": scale}
            plain[name] = multiply_blocks(weight, scale, BLOCK, torch.float32)
    folder = tmp_path / "fp8"
    shutil.copytree(written.folder, folder)
    save_file(plain, written.folder / "model.safetensors")
    save_file(packed, folder / "model.safetensors")
    change_config(folder, quantization_config=FP8, torch_dtype="float32")
    return folder, written.folder


def test_a_float8_checkpoint_generates_what_its_dequantized_weights_do(float8):
    folder, plain = float8
    assert generated(folder) == generated(plain)


def test_a_float8_checkpoint_is_explained_and_may_be_quantized_anew(float8, capsys):
    folder, _ = float8
    assert main(["explain", str(folder)]) == 0
    assert "float32" in capsys.readouterr().out
    assert main(["explain", str(folder), "--quantization", "none"]) == 0


def pairs(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Put row i of each head at 2 i, and row i + D / 2 behind it."""
    heads = tensor.view(-1, 2, head_dim // 2, tensor.shape[1])
    return heads.transpose(1, 2).reshape(tensor.shape)


@pytest.fixture
def mistral(tmp_path) -> tuple[Path, Path]:
    """A folder as Mistral publishes it, and the same weights as Hugging Face has them."""
    written = write_checkpoint(tmp_path / "hf", "MistralForCausalLM", layout="llama")
    config = written.config
    weights = {}
    for name, tensor in written.weights.items():
        own = next((ours for ours in MISTRAL if ours in name), "")
        value = pairs(tensor, config["head_dim"]) if own.endswith(("q_proj", "k_proj")) else tensor
        weights[name.replace(own, MISTRAL.get(own, "")).removeprefix("model.")] = value
    folder = tmp_path / "consolidated"
    shutil.copytree(written.folder, folder)
    (folder / "model.safetensors").unlink()
    (folder / "config.json").unlink()
    save_file({n: t.contiguous() for n, t in weights.items()}, folder / "consolidated.safetensors")
    params = {
        "dim": config["hidden_size"], "n_layers": config["num_hidden_layers"],
        "head_dim": config["head_dim"], "hidden_dim": config["intermediate_size"],
        "n_heads": config["num_attention_heads"], "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"], "vocab_size": config["vocab_size"],
        "rope_theta": config["rope_theta"], "max_seq_len": config["max_position_embeddings"],
    }  # fmt: skip
    (folder / "params.json").write_text(json.dumps(params))
    return folder, written.folder


def test_mistrals_own_layout_generates_what_that_of_hugging_face_does(mistral):
    folder, plain = mistral
    tokens = generated(folder)
    assert tokens == generated(plain)
    assert len({token for tokens in tokens for token in tokens}) > 5


def test_a_config_that_contradicts_the_weights_stops_the_start_with_its_value(mistral):
    _, folder = mistral
    change_config(folder, intermediate_size=96)
    with pytest.raises(CheckpointCorruptError, match=r"intermediate_size is 96, and the tensors"):
        generated(folder)


def test_layers_for_multi_token_prediction_are_left_out(mistral):
    _, folder = mistral
    expected = generated(folder)
    weights = load_file(folder / "model.safetensors")
    last = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    extra = {f"model.layers.{last}.eh_proj.weight": torch.ones(3), "mtp.norm.weight": torch.ones(2)}
    save_file(weights | extra, folder / "model.safetensors")
    change_config(folder, num_nextn_predict_layers=1)
    assert generated(folder) == expected
