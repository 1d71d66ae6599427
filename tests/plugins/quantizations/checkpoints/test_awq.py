"""AWQ layers are what their integers, scales and zero points stand for."""

import pytest
import torch
from prepared_tensors import read_layer, refusal_of
from quantized_layers import awq

from quire.errors import RefusedError
from quire_quantizations.checkpoints.awq import AWQ

CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}


def weight() -> torch.Tensor:
    return torch.randn(64, 96, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("group_size", [32, 64, 96])
def test_outputs_are_in_their_order_and_have_their_groups_scales(tmp_path, group_size):
    layer = awq(weight(), group_size)
    found = read_layer(
        tmp_path, AWQ.from_config(CONFIG | {"group_size": group_size}), layer.tensors
    )
    assert torch.equal(found.dequantized(), layer.weight)
    found = read_layer(tmp_path, AWQ.from_config({"w_bit": 4, "q_group_size": -1}), layer.tensors)
    assert (group_size == 64) or torch.equal(found.dequantized(), layer.weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": None}, "layer.scales is missing"),
        ({"qzeros": None}, "layer.qzeros is missing"),
        ({"scales": torch.ones(3, 32)}, "[3, 32]; awq needs [any, 64]"),
        ({"qzeros": torch.ones(3, 7).int()}, "[3, 7]; awq needs [3, 8]"),
        ({"qweight": torch.ones(96, 8).half()}, "has the dtype F16; awq needs I32"),
        (
            {"scales": torch.full((3, 64), torch.inf)},
            "layer.scales in model.safetensors has 192 values",
        ),
    ],
)
def test_a_damaged_layer_is_refused_by_the_name_of_its_tensor(tmp_path, changes, message):
    tensors = awq(weight()).tensors | changes
    assert message in refusal_of(tmp_path, AWQ.from_config(CONFIG), tensors)


def test_scales_of_an_activation_are_no_part_of_a_weight(tmp_path):
    """AutoAWQ writes them for some families, which the model then does not have."""
    others = {"act.scales": torch.ones(64)}
    reader = AWQ.from_config(CONFIG)
    found = read_layer(tmp_path, reader, awq(weight()).tensors, others, every=True)
    assert set(found) == {"layer.weight", "act.scales"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"version": "gemv"}, "'gemv'; quire reads awq with the layout gemm"), ({"bits": 3}, "is 3;")],
)
def test_other_kinds_of_awq_are_refused_by_name(changes, message):
    with pytest.raises(RefusedError, match=message):
        AWQ.from_config(CONFIG | changes)
