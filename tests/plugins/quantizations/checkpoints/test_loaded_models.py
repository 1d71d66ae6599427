"""Models of several families load quantized layers as their dequantized weights, on every rank."""

from dataclasses import replace

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from model_parts import CONTEXT
from quantized_checkpoints import KINDS, write_quantized
from safetensors.torch import load_file, save_file

from quire.errors import CheckpointCorruptError
from quire.layers import TensorParallelGroup
from quire.worker.loading.weight_loading import load_weights
from quire_models.decoder.decoder_model import DecoderForCausalLM
from quire_models.family_table import describe

LAYERS = {
    "LlamaForCausalLM": "_proj.weight",  # merged qkv, gate and up
    "Phi3ForCausalLM": "_proj.weight",  # fused in the checkpoint
    "FalconForCausalLM": ("query_key_value.weight", "dense.weight", "_4h.weight", "_to_h.weight"),
    "GPT2LMHeadModel": ("c_attn.weight", "c_proj.weight", "c_fc.weight"),  # transposed
    "Qwen3MoeForCausalLM": "_proj.weight",  # experts one by one
}


class OneOf(TensorParallelGroup):
    """A rank without peers."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def all_reduce(self, x):
        return x

    def all_gather(self, x, dim=-1):
        return x


def parameters(config, folder, prepared=None, rank=0, size=1):
    model = DecoderForCausalLM(describe(config), replace(CONTEXT, tp=OneOf(rank, size)))
    load_weights(model, folder, config=config, prepared=prepared)
    return dict(model.named_parameters())


@pytest.fixture
def with_biases(tmp_path):
    """A Llama whose GPTQ files have a bias for a layer that has none in the model."""
    written = write_family(tmp_path / "plain", CASES["LlamaForCausalLM"]["linear"])
    folder = tmp_path / "quantized"
    write_quantized(written.folder, folder, KINDS["gptq"], lambda name: "down_proj" in name)
    tensors = load_file(folder / "model.safetensors")

    def write(value):
        outputs = tensors["model.layers.0.mlp.down_proj.qweight"].shape[1]
        bias = {"model.layers.0.mlp.down_proj.bias": torch.full((outputs,), value)}
        save_file(tensors | bias, folder / "model.safetensors")
        return parameters(written.config, folder, KINDS["gptq"].reader())

    return write


def test_biases_of_zeros_are_left_out_where_the_model_has_none(with_biases):
    assert with_biases(0.0)
    with pytest.raises(CheckpointCorruptError, match=r"not in the model: .*down_proj\.bias"):
        with_biases(0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", LAYERS)
def test_a_quantized_model_is_the_dequantized_one(tmp_path, family, kind):
    written = write_family(tmp_path / "plain", next(iter(CASES[family].values())))
    write_quantized(
        written.folder, tmp_path / "quantized", KINDS[kind],
        lambda name: name.endswith(LAYERS[family]), transposed=family.startswith("GPT2"),
    )  # fmt: skip
    for rank, size in [(0, 1), (0, 2), (1, 2)]:
        expected = parameters(written.config, written.folder, rank=rank, size=size)
        prepared = KINDS[kind].reader()
        found = parameters(written.config, tmp_path / "quantized", prepared, rank, size)
        assert found.keys() == expected.keys()
        different = [name for name in found if not torch.equal(found[name], expected[name])]
        assert different == []
