"""Layers of AutoRound are read as those of GPTQ or of AWQ, as their packing is."""

import pytest
import torch
from prepared_tensors import read_layer
from quantized_layers import awq, gptq

from quire.errors import RefusedError
from quire_quantizations.checkpoints.auto_round import AutoRound

CONFIG = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False}


def reader(packing):
    return AutoRound.from_config(CONFIG | {"packing_format": packing})


@pytest.mark.parametrize("packing", ["auto_round:auto_gptq", "auto_gptq", "auto_round:gptq"])
def test_layers_that_are_packed_as_those_of_gptq_are_read(tmp_path, packing):
    layer = gptq(torch.randn(64, 96), symmetric=False)
    del layer.tensors["g_idx"]
    assert torch.equal(
        read_layer(tmp_path, reader(packing), layer.tensors).dequantized(), layer.weight
    )


@pytest.mark.parametrize("packing", ["auto_round:auto_awq", "auto_awq"])
def test_layers_that_are_packed_as_those_of_awq_are_read(tmp_path, packing):
    layer = awq(torch.randn(64, 96))
    assert torch.equal(
        read_layer(tmp_path, reader(packing), layer.tensors).dequantized(), layer.weight
    )


def test_another_packing_is_refused_by_name():
    with pytest.raises(RefusedError, match=r"packing_format in config\.json is 'auto_round:mxfp'"):
        reader("auto_round:mxfp")
