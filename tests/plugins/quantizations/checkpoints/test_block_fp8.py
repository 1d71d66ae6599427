"""Float8 weights are multiplied by the scales of their blocks, and nothing else changes."""

import json
from dataclasses import replace

import pytest
import torch
from model_parts import CONTEXT, make_model, random_tokens
from prepared_tensors import read_layer, refusal_of
from safetensors.torch import save_file

from quire.errors import CheckpointCorruptError, UnsupportedModelError
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import logits_of
from quire.worker.loading.weight_loading import load_weights
from quire_quantizations.checkpoints.block_fp8 import BlockFP8

BLOCK = [32, 24]
QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


def by_the_definition(weight, scale, block):
    """Multiply each element by the factor of its block."""
    out = torch.empty(weight.shape)
    for index in torch.cartesian_prod(*(torch.arange(size) for size in weight.shape)).tolist():
        *stack, row, column = index
        factor = scale[(*stack, row // block[0], column // block[1])]
        out[tuple(index)] = float(weight[tuple(index)]) * float(factor)
    return out


def read(tmp_path, weight, scale, block=None):
    method = BlockFP8.from_config({} if block is None else {"weight_block_size": list(block)})
    value = read_layer(tmp_path, method, {"weight": weight, "weight_scale_inv": scale})
    return value if isinstance(value, torch.Tensor) else value.dequantized()


@pytest.mark.parametrize(
    ("shape", "block"), [((6, 8), (3, 4)), ((7, 9), (3, 4)), ((2, 5, 6), (4, 4)), ((3, 2), (8, 8))]
)
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_each_element_has_the_factor_of_its_block(tmp_path, shape, block, dtype):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).to(dtype)
    blocks = [-(-size // step) for size, step in zip(shape[-2:], block, strict=True)]
    scale = torch.rand(*shape[:-2], *blocks, generator=generator)
    expected = by_the_definition(weight, scale, block)
    expected = expected.bfloat16() if len(shape) == 3 else expected  # a stack is not kept in codes
    torch.testing.assert_close(read(tmp_path, weight, scale, block), expected)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.tensor([0.5])])
def test_one_factor_is_for_the_whole_weight(tmp_path, shape, scale):
    weight = torch.randn(shape).to(torch.float8_e4m3fn)
    assert torch.equal(read(tmp_path, weight, scale).float(), weight.float() * 0.5)


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_a_scale_may_have_the_name_that_autofp8_gives_it(tmp_path, name):
    weight = torch.randn(3, 4).to(torch.float8_e4m3fn)
    tensors = {"weight": weight, name: torch.tensor(0.5), "input_scale": torch.ones(1)}
    method = BlockFP8.from_config(QUANTIZATION)
    found = read_layer(tmp_path, method, tensors, every=True)
    assert set(found) == {"layer.weight"}
    value = read_layer(tmp_path, method, tensors).dequantized()
    assert torch.equal(value, weight.float() * 0.5)


def test_powers_of_two_as_scales_are_factors(tmp_path):
    weight = torch.ones(2, 2).to(torch.float8_e4m3fn)
    scale = torch.tensor([[0.25]]).to(torch.float8_e8m0fnu)
    assert torch.equal(read(tmp_path, weight, scale, (2, 2)), torch.full((2, 2), 0.25))


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]
)
@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
def test_scales_of_a_dtype_without_factors_are_refused(tmp_path, dtype, name):
    tensors = {"weight": torch.ones(4, 4).to(torch.float8_e4m3fn)}
    tensors[name] = torch.ones(2, 2).to(dtype)
    method = BlockFP8.from_config({"weight_block_size": [2, 2]})
    refusal = refusal_of(tmp_path, method, tensors)
    assert f"tensor layer.{name} in model.safetensors has the dtype" in refusal
    assert "download the checkpoint again" in refusal


def test_two_scales_of_one_weight_are_refused(tmp_path):
    tensors = {"weight": torch.ones(4, 4).to(torch.float8_e4m3fn)}
    tensors |= {"weight_scale": torch.tensor(0.5), "weight_scale_inv": torch.tensor(2.0)}
    refusal = refusal_of(tmp_path, BlockFP8.from_config(QUANTIZATION), tensors)
    assert "layer.weight in model.safetensors has two scales, layer.weight_scale_inv and" in refusal


def quantized(tensor):
    """Return a float8 weight, its scales, and the weight that both stand for."""
    rows, columns = (-(-size // step) for size, step in zip(tensor.shape, BLOCK, strict=True))
    scale = torch.rand(rows, columns) + 0.5
    weight = tensor.to(torch.float8_e4m3fn)
    return weight, scale, by_the_definition(weight, scale, BLOCK)


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint whose linear layers are float8, and the same one dequantized."""
    torch.manual_seed(0)
    written = write_checkpoint(tmp_path / "plain", "Qwen3ForCausalLM", num_hidden_layers=2)
    plain, fp8 = dict(written.weights), dict(written.weights)
    for name in written.weights:
        if name.endswith("_proj.weight") and "layers.1.mlp" not in name:
            fp8[name], fp8[name + "_scale_inv"], plain[name] = quantized(written.weights[name])
    save_file(plain, written.folder / "model.safetensors")
    folder = tmp_path / "fp8"
    folder.mkdir()
    save_file(fp8, folder / "model.safetensors")
    config = written.config | {
        "quantization_config": QUANTIZATION | {"weight_block_size": BLOCK},
        "torch_dtype": "bfloat16",
    }
    return replace(written, folder=written.folder), folder, config, fp8


def method(config):
    return BlockFP8.from_config(config["quantization_config"])


def test_a_float8_checkpoint_is_the_dequantized_one(checkpoint):
    written, folder, config, _ = checkpoint
    model, expected = make_model(written.config), make_model(written.config)
    load_weights(model, folder, config=config, prepared=method(config))
    load_weights(expected, written.folder)
    tokens = random_tokens(7)
    torch.testing.assert_close(logits_of(model, tokens), logits_of(expected, tokens))
    assert CONTEXT.dtype is torch.float32


def shards(folder, fp8):
    """Write scales and weights to files of their own, with an index."""
    groups = {
        "model-00001-of-00002.safetensors": {n: t for n, t in fp8.items() if "scale" in n},
        "model-00002-of-00002.safetensors": {n: t for n, t in fp8.items() if "scale" not in n},
    }
    index = {}
    for file, tensors in groups.items():
        save_file(tensors, folder / file)
        index |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def test_a_scale_may_be_in_another_file(checkpoint):
    written, folder, config, fp8 = checkpoint
    whole, sharded = make_model(written.config), make_model(written.config)
    load_weights(whole, folder, config=config, prepared=method(config))
    shards(folder, fp8)
    load_weights(sharded, folder, config=config, prepared=method(config))
    for one, other in zip(whole.parameters(), sharded.parameters(), strict=True):  # type: ignore[attr-defined]
        assert torch.equal(one, other)


NAME = "model.layers.0.mlp.up_proj.weight"


def refused(checkpoint, **changes) -> str:
    written, folder, config, fp8 = checkpoint
    kept = {name: tensor for name, tensor in (fp8 | changes).items() if tensor is not None}
    save_file(kept, folder / "model.safetensors")
    with pytest.raises(CheckpointCorruptError) as caught:
        load_weights(make_model(written.config), folder, prepared=method(config))
    return str(caught.value)


def test_a_weight_without_its_scale_is_named(checkpoint):
    text = refused(checkpoint, **{NAME + "_scale_inv": None})
    assert (
        f"tensor {NAME} in model.safetensors is quantized, and {NAME}_scale_inv is missing" in text
    )


def test_a_scale_of_other_blocks_is_an_error_with_both_shapes(checkpoint):
    text = refused(checkpoint, **{NAME + "_scale_inv": torch.ones(2, 2)})
    assert (
        "has shape [2, 2], but a weight of shape [112, 64] in blocks of [32, 24] needs [4, 3]"
        in (text)
    )


def test_a_scale_without_a_float8_weight_is_named_with_the_weight(checkpoint):
    text = refused(checkpoint, **{"model.norm.weight_scale_inv": torch.ones(1, 1)})
    assert "tensor model.norm.weight in model.safetensors has the dtype F32; a weight with" in text
    assert f"{NAME} is missing" in refused(checkpoint, **{NAME: None})


@pytest.mark.parametrize("size", [128, [128], [0, 128], ["128", 128], [1, 2, 3]])
def test_a_block_size_that_is_none_is_refused(checkpoint, size):
    config = checkpoint[2] | {"quantization_config": QUANTIZATION | {"weight_block_size": size}}
    with pytest.raises(
        UnsupportedModelError, match=r"weight_block_size in config\.json must be two"
    ):
        method(config)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("is_stack", [True, False])
def test_elements_that_are_no_numbers_are_refused(tmp_path, dtype, is_stack):
    weight = torch.zeros(2, 3, 4) if is_stack else torch.zeros(3, 4)
    weight[..., 1, 1] = torch.nan
    with pytest.raises(
        CheckpointCorruptError, match=r"layer\.weight in model\.safetensors has \d values"
    ):
        read(tmp_path, weight.to(dtype), torch.tensor(1.0))


def test_a_scale_of_zero_is_for_zeros_only(tmp_path):
    weight, scale = torch.eye(4).to(torch.float8_e4m3fn), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert torch.equal(read(tmp_path, weight, scale, (2, 2)), torch.eye(4))
    with pytest.raises(CheckpointCorruptError, match="numbers other than 0 whose scales are 0"):
        read(tmp_path, weight, scale * torch.tensor([1.0, 0.0]), (2, 2))
    with pytest.raises(CheckpointCorruptError, match=r"scale_inv in .* has 2 scales below 0"):
        read(tmp_path, weight, -scale, (2, 2))


def test_scales_that_are_no_numbers_are_refused(checkpoint):
    text = refused(checkpoint, **{NAME + "_scale_inv": torch.full((4, 3), torch.nan)})
    assert f"{NAME}_scale_inv in model.safetensors has 12 values that are infinite" in text
