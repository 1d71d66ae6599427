"""GPTQ layers are what their integers, scales and zero points stand for."""

import logging
from pathlib import Path

import pytest
import torch
from prepared_tensors import read_layer, refusal_of
from quantized_layers import gptq

from quire.errors import RefusedError
from quire_quantizations.checkpoints.gptq import GPTQ

CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq"}


def weight(outputs=64, inputs=96, seed=0) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed))


def config(**changes):
    return GPTQ.from_config(CONFIG | changes)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("less_one", [True, False])
def test_every_number_of_bits_and_both_conventions_are_read(tmp_path, bits, symmetric, less_one):
    layer = gptq(weight(), bits, symmetric=symmetric, less_one=less_one)
    method = config(bits=bits, checkpoint_format="gptq" if less_one else "gptq_v2")
    found = read_layer(tmp_path, method, layer.tensors)
    assert torch.equal(found.dequantized(), layer.weight)
    assert (found.offsets is None) == symmetric


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("less_one", [True, False])
def test_a_config_with_the_wrong_convention_is_corrected_by_the_zero_points(
    tmp_path, caplog, symmetric, less_one
):
    layer = gptq(weight(), symmetric=symmetric, less_one=less_one)
    wrong = config(checkpoint_format="gptq_v2" if less_one else "gptq")
    with caplog.at_level(logging.WARNING):
        found = read_layer(tmp_path, wrong, layer.tensors)
    assert torch.equal(found.dequantized(), layer.weight)
    assert ("checkpoint_format" in caplog.text) != symmetric


def test_inputs_in_the_order_of_their_activations_have_the_groups_of_g_idx(tmp_path):
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1)) // 32
    layer = gptq(weight(), groups=order)
    found = read_layer(tmp_path, config(desc_act=True), layer.tensors)
    assert torch.equal(found.dequantized(), layer.weight)
    assert torch.equal(found.columns(range(40, 72)).dequantized(), layer.weight[:, 40:72])


def test_groups_in_order_need_no_list(tmp_path):
    layer = gptq(weight())
    assert read_layer(tmp_path, config(), layer.tensors).groups is None
    del layer.tensors["g_idx"]
    assert torch.equal(read_layer(tmp_path, config(), layer.tensors).dequantized(), layer.weight)


@pytest.mark.parametrize("group_size", [32, 64, -1])
def test_the_group_size_is_that_of_the_tensors(tmp_path, group_size):
    layer = gptq(weight(inputs=160), group_size=160 if group_size == -1 else group_size)
    for named in (group_size, 128):
        method = config(group_size=named)
        assert torch.equal(read_layer(tmp_path, method, layer.tensors).dequantized(), layer.weight)


def test_bits_are_those_of_the_tensors_as_dynamic_options_may_differ(tmp_path):
    layer = gptq(weight(), 8, 64)
    assert torch.equal(read_layer(tmp_path, config(), layer.tensors).dequantized(), layer.weight)


@pytest.mark.parametrize("less_one", [True, False])
@pytest.mark.parametrize("is_right", [True, False])
def test_eight_bits_that_seem_to_contradict_the_config_are_warned_of(
    tmp_path, caplog, less_one, is_right
):
    """Scales are so small that an average weight of one scale is possible: nothing is corrected."""
    named = less_one if is_right else not less_one
    method = config(bits=8, checkpoint_format="gptq" if named else "gptq_v2")
    layer = gptq(weight(512, 512), 8, 128, symmetric=False, less_one=less_one)
    for count in range(1, 13):
        found = read_layer(tmp_path, method, layer.tensors)
        assert torch.equal(found.dequantized(), layer.weight) == is_right
        assert ("look as if they are stored" in caplog.text) == (not is_right and count >= 8)
    assert caplog.text.count("checkpoint_format") == (not is_right)


def test_without_zero_points_a_layer_is_symmetric(tmp_path):
    layer = gptq(weight())
    del layer.tensors["qzeros"]
    assert torch.equal(
        read_layer(tmp_path, config(sym=True), layer.tensors).dequantized(), layer.weight
    )


@pytest.mark.parametrize(
    ("options", "missing", "relaxed"),
    [
        ({"sym": False}, "qzeros", {"sym": True}),
        ({}, "qzeros", {"sym": True}),
        ({"desc_act": True}, "g_idx", {"desc_act": False}),
    ],
)
def test_parts_that_the_config_promises_must_be_there(tmp_path, options, missing, relaxed):
    layer = gptq(weight(), symmetric=False)
    one_group = gptq(weight(), group_size=96, symmetric=False)
    for each in (layer, one_group):
        read_layer(tmp_path, config(**options), each.tensors)
        del each.tensors[missing]
    refusal = refusal_of(tmp_path, config(**options), layer.tensors)
    assert f"layer.{missing} is missing" in refusal
    for pattern, is_refused in (("+:lay", False), ("lay.*", False), ("ayer", True), ("-:b", True)):
        other = config(dynamic={pattern: relaxed}, **options)
        if is_refused:
            assert "is missing" in refusal_of(tmp_path, other, layer.tensors)
        else:
            assert read_layer(tmp_path, other, layer.tensors) is not None
    if missing == "g_idx":
        found = read_layer(tmp_path, config(**options), one_group.tensors)
        assert torch.equal(found.dequantized(), one_group.weight)


def test_rows_and_columns_are_those_of_the_weight(tmp_path):
    layer = gptq(weight(), symmetric=False)
    found = read_layer(tmp_path, config(), layer.tensors)
    indices = torch.tensor([5, 3, 63])
    assert torch.equal(found.rows(indices).dequantized(), layer.weight[indices])
    for columns in (range(32, 64), range(8, 80), range(64, 96), range(96)):
        expected = layer.weight[:, columns.start : columns.stop]
        assert torch.equal(found.columns(columns).dequantized(), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"scales": None},
            "qweight in model.safetensors is quantized, and layer.scales is missing",
        ),
        (
            {"scales": torch.ones(3, 32)},
            r"scales in .* has shape \[3, 32\]; gptq needs \[any, 64\]",
        ),
        (
            {"scales": torch.ones(3, 64).int()},
            "scales .* has the dtype I32; gptq needs F16 or BF16",
        ),
        ({"qweight": torch.ones(12, 64)}, "qweight .* has the dtype F32; gptq needs I32"),
        ({"qzeros": torch.ones(3, 7).int()}, r"qzeros .* \[3, 7\]; for 64 outputs .* 8 columns"),
        (
            {"qzeros": torch.ones(2, 8).int()},
            r"qzeros .* \[2, 8\]; gptq with 4 bits needs \[3, 8\]",
        ),
        ({"g_idx": torch.zeros(95).int()}, r"g_idx .* \[95\]; gptq with 4 bits needs \[96\]"),
        ({"g_idx": torch.full((96,), 3).int()}, "g_idx in .* has groups from 3 to 3, .* for 3;"),
        ({"g_idx": torch.full((96,), -1).int()}, "g_idx in .* has groups from -1 to -1"),
        (
            {"scales": torch.full((3, 64), torch.nan)},
            "scales in .* has 192 values .* infinite or NaN",
        ),
        (
            {"g_idx": None, "scales": torch.ones(5, 64), "qzeros": torch.ones(5, 8).int()},
            "scales for 5 groups .* 96 inputs .* cannot be divided so by the group_size 32",
        ),
    ],
)
def test_a_damaged_layer_is_refused_by_the_name_of_its_tensor(tmp_path, changes, message):
    tensors = gptq(weight()).tensors | changes
    assert_matches(refusal_of(tmp_path, config(), tensors), message)


def assert_matches(text, pattern):
    with pytest.raises(ValueError, match=pattern):
        raise ValueError(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpoint_format": "marlin"}, "checkpoint_format .* 'marlin'; quire reads gptq with"),
        ({"bits": 9}, "bits in config.json is 9; quire reads gptq with 2, 3"),
        ({"bits": None}, "bits in config.json is None"),
    ],
)
def test_other_kinds_of_gptq_are_refused_by_name(changes, message):
    with pytest.raises(RefusedError, match=message):
        config(**changes)


def test_layers_that_are_not_quantized_stay(tmp_path: Path):
    layer = gptq(weight())
    plain = {"other.weight": torch.ones(2, 3), "layer.bias": torch.ones(64)}
    found = read_layer(tmp_path, config(), layer.tensors, plain, every=True)
    assert set(found) == {"layer.weight", "layer.bias", "other.weight"}
