"""GGUF files give the models that transformers has of the same weights."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_checkpoints import folder_as_gguf, model_metadata, model_tensors
from gguf_families import CASES, metadata_of, tensors_of, write_case
from gguf_files import NUMBERS, Blocks, write_gguf
from model_parts import make_model, random_tokens
from safetensors.torch import load_file, save_file

from quire.compose.gguf.model_config import config_of
from quire.compose.gguf.split_files import read_files
from quire.compose.gguf.tensor_types import TYPES
from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor, StoredTensor
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import logits_of
from quire.worker.loading.tensor_reading import read_stored
from quire.worker.loading.weight_loading import load_weights
from quire_quantizations.checkpoints.gguf import BLOCKS, GGUF

ARCHITECTURES = ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]
WIDE = {"hidden_size": 256, "intermediate_size": 512}  # rows of whole super-blocks


def random_blocks(kind, shape, rng):
    """Random codes with scales that give small numbers, and these numbers."""
    layout = TYPES[NUMBERS[kind]]
    count = shape[0] * shape[1] // layout.block_size
    data = rng.integers(0, 256, (count, layout.block_bytes), dtype=np.uint8)
    if kind == "MXFP4":
        data[:, 0] = rng.integers(118, 122, count)
    halves = {
        "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
        "Q2_K": [80, 82], "Q3_K": [108], "MXFP4": [],
    }  # fmt: skip
    for position in halves.get(kind, [0]):
        least = 2**-9 if kind.endswith(("K", "XS", "NL")) else 2**-5
        factors = (rng.random(count) * least + least / 2).astype(np.float16)
        data[:, position : position + 2] = factors.view(np.uint8).reshape(-1, 2)
    stored = StoredTensor("a", Path("a"), shape, kind, data.nbytes)
    (tensor,) = GGUF().read({"a": CheckpointTensor("a", shape, (stored,))}, read_stored).values()
    weight = tensor.value(torch.from_numpy(data).view(shape[0], -1))
    return Blocks(data, NUMBERS[kind], shape), weight.dequantized()


def loaded(file):
    config = config_of(read_files(file))
    prepared = GGUF() if "quantization_config" in config else None
    model = make_model(config)
    load_weights(model, file, config=config, prepared=prepared)
    return model


def their_logits(folder, tokens):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        return model(tokens.unsqueeze(0)).logits[0]


def write_quantized(folder, kinds, architecture, **config):
    """Write a checkpoint whose matrices are the numbers of random blocks, in both layouts."""
    written = write_checkpoint(folder / "hf", architecture, **WIDE, **config)
    rng, numbers, blocks = np.random.default_rng(0), {}, {}
    for name, tensor in written.weights.items():
        if tensor.dim() > 1:
            kind = kinds[len(blocks) % len(kinds)]
            blocks[name], numbers[name] = random_blocks(kind, tuple(tensor.shape), rng)
    head_dim, is_llama = written.config["head_dim"], written.config["model_type"] == "llama"
    order = torch.arange(head_dim).view(-1, 2).T.flatten()  # even rows of a head, then odd ones
    for name, tensor in numbers.items():  # in the file they are in pairs
        if is_llama and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = tensor.view(-1, head_dim, tensor.shape[1])
            numbers[name] = heads[:, order].reshape(tensor.shape).contiguous()
    by_data = {id(numbers[name]): blocks[name] for name in numbers}
    weights = {**written.weights, **numbers}
    save_file(weights, written.folder / "model.safetensors", metadata={"format": "pt"})
    metadata = model_metadata(written.config)
    plain = {**written.config, "model_type": ""}  # blocks are in the order of the file already
    tensors = model_tensors(weights, plain, lambda _, tensor: by_data[id(tensor)])
    return write_gguf(folder / "model.gguf", metadata, tensors), written.folder


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_those_of_transformers(tmp_path, architecture, is_tied):
    written = write_checkpoint(tmp_path / "hf", architecture, tie_word_embeddings=is_tied)
    file = folder_as_gguf(written.folder, tmp_path / "model.gguf")
    tokens = random_tokens(13)
    assert ("output.weight" in read_files(file).tensors) is not is_tied
    torch.testing.assert_close(
        logits_of(loaded(file), tokens), their_logits(written.folder, tokens), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_of_blocks_equal_those_of_transformers_with_their_numbers(tmp_path, architecture):
    file, folder = write_quantized(tmp_path, sorted(BLOCKS), architecture, num_hidden_layers=2)
    tokens = random_tokens(13)
    torch.testing.assert_close(
        logits_of(loaded(file), tokens), their_logits(folder, tokens), atol=1e-3, rtol=1e-3
    )


def test_llama_may_have_biases_whose_rows_are_in_pairs_too(tmp_path):
    written = write_checkpoint(
        tmp_path / "hf", "LlamaForCausalLM", attention_bias=True, mlp_bias=True
    )
    file = folder_as_gguf(written.folder, tmp_path / "model.gguf")
    tokens = random_tokens(9)
    torch.testing.assert_close(
        logits_of(loaded(file), tokens), their_logits(written.folder, tokens), atol=1e-4, rtol=1e-4
    )


def test_factors_of_wavelengths_are_the_scaling_of_llama_3(tmp_path):
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    written = write_checkpoint(tmp_path / "hf", "LlamaForCausalLM", rope_scaling=scaling)
    weights = load_file(written.folder / "model.safetensors")
    waves = 2 * np.pi * 10000.0 ** (np.arange(8) / 8)
    smooth = (64 / waves - 1.0) / (4.0 - 1.0)
    between = 1 / ((1 - smooth) / 8.0 + smooth)
    factors = np.where(waves < 64 / 4, 1.0, np.where(waves > 64 / 1, 8.0, between))
    assert len(set(factors)) > 2
    tensors = model_tensors(weights, written.config) | {"rope_freqs.weight": factors}
    file = write_gguf(tmp_path / "model.gguf", model_metadata(written.config), tensors)
    tokens = random_tokens(150)
    torch.testing.assert_close(
        logits_of(loaded(file), tokens), their_logits(written.folder, tokens), atol=5e-4, rtol=1e-3
    )


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_plain_numbers_keep_their_bits(tmp_path, kind):
    dtype = {"F16": torch.float16, "BF16": torch.bfloat16}[kind]

    def narrow(name, tensor):
        codes = tensor.to(dtype).contiguous().view(torch.int16).numpy()
        return Blocks(codes, NUMBERS[kind], tuple(tensor.shape))

    written = write_checkpoint(tmp_path / "hf", "LlamaForCausalLM")
    file = folder_as_gguf(written.folder, tmp_path / "model.gguf", store=narrow)
    narrowed = {n: t.to(dtype).float() if t.dim() > 1 else t for n, t in written.weights.items()}
    save_file(narrowed, written.folder / "model.safetensors", metadata={"format": "pt"})
    tokens = random_tokens(9)
    torch.testing.assert_close(
        logits_of(loaded(file), tokens), their_logits(written.folder, tokens), atol=1e-4, rtol=1e-4
    )


def test_a_tensor_of_another_name_is_listed(tmp_path):
    written = write_checkpoint(tmp_path / "hf", "Qwen3ForCausalLM")
    tensors = model_tensors(written.weights, written.config)
    tensors["blk.0.attn_sinks.weight"] = np.zeros(4)
    file = write_gguf(tmp_path / "model.gguf", model_metadata(written.config), tensors)
    with pytest.raises(CheckpointCorruptError, match=r"not in the model: blk\.0\.attn_sinks"):
        loaded(file)


def test_a_missing_tensor_is_listed_under_the_name_that_the_file_gives_it(tmp_path):
    written = write_checkpoint(tmp_path / "hf", "Qwen3ForCausalLM")
    tensors = model_tensors(written.weights, written.config)
    del tensors["blk.1.ffn_up.weight"]
    file = write_gguf(tmp_path / "model.gguf", model_metadata(written.config), tensors)
    with pytest.raises(
        CheckpointCorruptError,
        match=r"model\.gguf' does not fit .* missing: blk\.1\.ffn_up\.weight; download",
    ):
        loaded(file)


def write_changed(folder, architecture="LlamaForCausalLM", metadata=None, **tensors):
    """Write a model with other tensors and metadata; None takes a tensor away."""
    written = write_checkpoint(folder / "hf", architecture)
    names = {key.replace("__", "."): value for key, value in tensors.items()}
    found = model_tensors(written.weights, written.config) | names
    found = {name: value for name, value in found.items() if value is not None}
    return write_gguf(
        folder / "model.gguf", model_metadata(written.config) | (metadata or {}), found
    )


def test_a_wrong_shape_is_explained_by_the_metadata(tmp_path):
    file = write_changed(tmp_path, blk__1__ffn_down__weight=np.zeros((64, 96)))
    with pytest.raises(CheckpointCorruptError) as caught:
        loaded(file)
    assert str(caught.value) == (
        "tensor blk.1.ffn_down.weight in model.gguf has shape [64, 96], but its metadata requires "
        "[64, 112]"
    )


def test_a_wrong_size_names_its_key_of_the_metadata(tmp_path):
    file = write_changed(tmp_path, metadata={"llama.feed_forward_length": 96})
    with pytest.raises(CheckpointCorruptError) as caught:
        loaded(file)
    assert "In its metadata llama.feed_forward_length is 96, and the tensors have 112" in str(
        caught.value
    )
    assert "config.json" not in str(caught.value)


def test_a_wrong_number_of_layers_names_its_key_of_the_metadata(tmp_path):
    file = write_changed(tmp_path, metadata={"llama.block_count": 4})
    with pytest.raises(CheckpointCorruptError) as caught:
        loaded(file)
    assert "missing: blk.3." in str(caught.value)
    assert "In its metadata llama.block_count is 4, and the tensors have 3 layers" in str(
        caught.value
    )


def test_two_tensors_that_mean_the_same_are_named(tmp_path):
    file = write_changed(
        tmp_path,
        metadata={"llama.expert_count": 2, "llama.expert_used_count": 1},
        blk__0__ffn_up_exps__weight=np.zeros((2, 112, 64)),
        **{"blk.0.ffn_up.1.weight": np.zeros((112, 64))},
    )
    with pytest.raises(CheckpointCorruptError, match=r"ffn_up_exps\.weight and blk\.0\.ffn_up\.1"):
        loaded(file)


@pytest.mark.parametrize("shape", [(3, 112, 64), (1, 112, 64), (2,)])
def test_a_stack_of_another_number_of_experts_is_named(tmp_path, shape):
    file = write_changed(
        tmp_path,
        metadata={"llama.expert_count": 2, "llama.expert_used_count": 1},
        blk__0__ffn_up_exps__weight=np.zeros(shape),
    )
    with pytest.raises(
        CheckpointCorruptError, match=r"ffn_up_exps\.weight .* a stack of 2 experts"
    ):
        loaded(file)


def test_parts_of_latent_attention_that_do_not_fit_are_named(tmp_path):
    pytest.importorskip("gguf")
    case = CASES["deepseek3"]
    file, written = write_case(tmp_path, case)
    tensors = tensors_of(case, written) | {"blk.1.attn_v_b.weight": np.zeros((4, 24, 31))}
    write_gguf(file, metadata_of(case, written.config), tensors)
    with pytest.raises(
        CheckpointCorruptError, match=r"attn_k_b\.weight and blk\.1\.attn_v_b\.weight"
    ):
        loaded(file)


def test_experts_of_a_model_without_them_are_listed(tmp_path):
    file = write_changed(tmp_path, blk__0__ffn_up_exps__weight=np.zeros((2, 112, 64)))
    with pytest.raises(CheckpointCorruptError, match=r"not in the model: blk\.0\.ffn_up_exps\.w"):
        loaded(file)


def test_missing_experts_are_listed_once_under_the_name_of_the_stack(tmp_path):
    file = write_changed(tmp_path, metadata={"llama.expert_count": 2, "llama.expert_used_count": 1})
    with pytest.raises(CheckpointCorruptError, match=r"missing: .*blk\.0\.ffn_gate_exps\.weight,"):
        loaded(file)


def test_rows_that_are_no_whole_heads_are_an_error(tmp_path):
    written = write_checkpoint(tmp_path / "hf", "LlamaForCausalLM")
    tensors = model_tensors(written.weights, written.config)
    tensors["blk.0.attn_k.weight"] = np.zeros((15, 64))
    file = write_gguf(tmp_path / "model.gguf", model_metadata(written.config), tensors)
    with pytest.raises(CheckpointCorruptError, match=r"attn_k\.weight in .* shape \[15, 64\].* 16"):
        loaded(file)


def test_a_file_of_the_gguf_package_is_read(tmp_path):
    """Written by llama.cpp's own package, where it is installed."""
    gguf = pytest.importorskip("gguf")
    written = write_checkpoint(tmp_path / "hf", "LlamaForCausalLM", **WIDE)
    config = written.config
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_token_list(["a", "b"])
    rounded = {}
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, array in model_tensors(written.weights, config).items():
        if array.ndim == 1:
            writer.add_tensor(name, array)
            continue
        packed = gguf.quantize(np.ascontiguousarray(array), q8)
        writer.add_tensor(name, packed, raw_dtype=q8)
        rounded[name] = gguf.dequantize(packed, q8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    plain = write_gguf(
        tmp_path / "plain.gguf",
        model_metadata(config),
        model_tensors(written.weights, config) | rounded,
    )
    tokens = random_tokens(9)
    assert torch.equal(logits_of(loaded(file), tokens), logits_of(loaded(plain), tokens))
