"""Layers of bitsandbytes are what their codes, tables and scales stand for."""

import json

import pytest
import torch
from prepared_tensors import read_layer, refusal_of
from quantized_layers import llm_int8, nf4

from quire_quantizations.checkpoints.bitsandbytes import BitsAndBytes

METHOD = BitsAndBytes.from_config({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"})
STATE = "weight.quant_state.bitsandbytes__nf4"


def weight(outputs=64, inputs=96) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("shape", [(64, 128), (64, 96), (6, 32), (7, 10), (300, 64)])
def test_blocks_of_elements_are_read_also_across_rows(tmp_path, nested, shape):
    layer = nf4(weight(*shape), nested=nested)
    found = read_layer(tmp_path, METHOD, layer.tensors)
    torch.testing.assert_close(found.dequantized(), layer.weight, rtol=1e-6, atol=1e-7)


def test_the_bytes_may_be_stored_as_another_dtype(tmp_path):
    layer = nf4(weight())
    layer.tensors["weight"] = layer.tensors["weight"].view(-1, 2).view(torch.bfloat16)
    assert torch.equal(read_layer(tmp_path, METHOD, layer.tensors).dequantized(), layer.weight)


def test_int8_is_read(tmp_path):
    layer = llm_int8(weight())
    assert torch.equal(read_layer(tmp_path, METHOD, layer.tensors).dequantized(), layer.weight)
    every = read_layer(tmp_path, METHOD, layer.tensors, every=True)
    assert set(every) == {"layer.weight"}


@pytest.mark.parametrize("code", [1, 2, 3])
def test_int8_in_the_order_of_tiles_is_refused(tmp_path, code):
    tensors = llm_int8(weight()).tensors
    for wrong in (torch.tensor(code).byte(), torch.tensor([code]).byte()):
        refusal = refusal_of(tmp_path, METHOD, tensors | {"weight_format": wrong})
        assert "tensor layer.weight_format in model.safetensors is" in refusal
        assert "the elements of layer.weight are in the order of a GPU's tiles" in refusal
    in_rows = tensors | {"weight_format": torch.tensor(0).byte()}
    assert torch.equal(
        read_layer(tmp_path, METHOD, in_rows).dequantized(), llm_int8(weight()).weight
    )


def state(**values):
    content = {"shape": [64, 96], "blocksize": 64} | values
    return torch.tensor(list(json.dumps(content).encode())).byte()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": None}, "layer.weight is missing"),
        ({"weight.absmax": None}, "layer.weight.absmax is missing"),
        ({"weight.quant_map": torch.ones(8)}, "quant_map in model.safetensors has shape [8]"),
        ({"weight.absmax": torch.ones(95)}, "absmax in model.safetensors has shape [95]"),
        ({"weight.absmax": torch.ones(96).byte()}, "layer.weight.nested_absmax is missing"),
        (
            {"weight.absmax": torch.full((96,), torch.nan)},
            "absmax in model.safetensors has 96 values",
        ),
        (
            {"weight.quant_map": torch.full((16,), torch.inf)},
            "map in model.safetensors has 16 values",
        ),
        ({STATE: state(shape=[64, 95])}, "4 bits of a weight [64, 95] are 3040"),
        ({STATE: state(shape=[64])}, "must be the JSON of a weight's shape and blocksize"),
        ({STATE: state(blocksize=0)}, "has sizes below 1"),
        ({STATE: torch.zeros(3).byte()}, "must be the JSON of a weight's shape and blocksize"),
    ],
)
def test_a_damaged_layer_is_refused_by_the_name_of_its_tensor(tmp_path, changes, message):
    assert message in refusal_of(tmp_path, METHOD, nf4(weight()).tensors | changes)


def test_a_damaged_layer_of_int8_is_refused_by_the_name_of_its_tensor(tmp_path):
    tensors = llm_int8(weight()).tensors
    assert "SCB in model.safetensors has shape [63]" in refusal_of(
        tmp_path, METHOD, tensors | {"SCB": torch.ones(63)}
    )
