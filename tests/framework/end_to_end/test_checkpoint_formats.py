"""Checkpoints of other formats generate what the same weights do in the layout of Hugging Face."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from grid_scenarios import write_random_adapter
from native_libraries import BF16_SETS_HERE
from quantized_checkpoints import KINDS, write_quantized
from safetensors.torch import load_file, save_file

from quire import LLM, LoRARequest, SamplingParams
from quire.cli.main import main
from quire.errors import CheckpointCorruptError
from quire.testing.checkpoints import write_checkpoint

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


def generated(folder: Path, adapter: Path | None = None, **options: object) -> list[list[int]]:
    options = {"dtype": "float32", "kernels": "torch", "num_kv_blocks": 64, **options}
    lora = None if adapter is None else LoRARequest("adapter", 1, str(adapter))
    with LLM(str(folder), enable_lora=adapter is not None, **options) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, lora_request=lora)
        return [list(output.outputs[0].token_ids) for output in outputs]


def change_config(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def scaled(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Multiply each element by the factor of its block."""
    factors = scale.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
    return weight.float() * factors[: weight.shape[0], : weight.shape[1]]


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
            plain[name] = scaled(weight, scale)
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


@pytest.fixture(params=["gptq", "gptq-act-order"])
def rounded(tmp_path, request) -> tuple[Path, Path, Path]:
    """A checkpoint with quantized layers, the same one dequantized, and an adapter for both."""
    written = write_checkpoint(tmp_path / "plain", "Qwen3ForCausalLM", num_hidden_layers=2)
    write_random_adapter(written, 0)
    kind = KINDS[request.param]
    write_quantized(
        written.folder, tmp_path / "rounded", kind, lambda name: name.endswith("_proj.weight")
    )
    return tmp_path / "rounded", written.folder, written.folder / "adapter-0"


def test_a_quantized_checkpoint_generates_what_its_dequantized_weights_do(rounded):
    folder, plain, adapter = rounded
    expected = generated(plain)
    assert generated(folder) == expected
    assert generated(folder, kernels="auto") == expected
    assert generated(folder, tensor_parallel_size=2) == expected
    assert generated(folder, adapter=adapter) == generated(plain, adapter=adapter) != expected


def test_a_quantized_checkpoint_is_explained_with_what_becomes_of_its_weights(rounded, capsys):
    folder, _, _ = rounded
    assert main(["explain", str(folder), "--kernels", "torch"]) == 0
    shown = capsys.readouterr().out
    name = json.loads((folder / "config.json").read_text())["quantization_config"]["quant_method"]
    assert f"auto: {name} is dequantized; codes: it needs native kernels" in shown
    assert main(["explain", str(folder), "--kernels", "native"]) == 0
    assert f"codes (the checkpoint's own: {name})" in capsys.readouterr().out
    assert main(["explain", str(folder), "--quantization", "int8"]) != 0
    assert "would be rounded twice" in capsys.readouterr().err
    own = json.loads((folder / "config.json").read_text())["quantization_config"]
    change_config(folder, quantization_config=own | {"bits": 5})
    assert main(["explain", str(folder)]) != 0
    assert "quantization_config.bits in config.json is 5" in capsys.readouterr().err


@pytest.mark.skipif(not BF16_SETS_HERE, reason="this processor does not multiply bfloat16")
@pytest.mark.parametrize("method", ["auto", "codes_int8"])
def test_a_quantized_checkpoint_in_bfloat16_is_computed_in_it(rounded, method):
    """In graphs, too; a row's bits do not depend on the other requests."""
    folder, _, _ = rounded
    change_config(folder, torch_dtype="bfloat16")
    options = {"dtype": "auto", "kernels": "auto", "quantization": method, "num_kv_blocks": 64}
    with LLM(str(folder), **options) as llm:
        assert llm.composition.weights.endswith("; products with bfloat16 inputs)")
    expected = generated(folder, **options)
    assert generated(folder, **options, enforce_eager=True) == expected
    assert generated(folder, **options, max_num_seqs=1) == expected
    assert len({token for tokens in expected for token in tokens}) > 5


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
