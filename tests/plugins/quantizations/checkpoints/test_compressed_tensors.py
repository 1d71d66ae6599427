"""Layers of compressed-tensors are what their codes, scales and zero points stand for."""

import pytest
import torch
from prepared_tensors import read_layer, refusal_of
from quantized_layers import float_quantized, int_quantized, pack_quantized

from quire.errors import CheckpointCorruptError, RefusedError
from quire_quantizations.checkpoints.compressed_tensors import CompressedTensors


def weight(outputs=64, inputs=96) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))


def method(**weights):
    groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, **weights}}}
    return CompressedTensors.from_config({"config_groups": groups, "ignore": ["re:.*lm_head"]})


def check(tmp_path, layer, reader=None):
    found = read_layer(tmp_path, reader or method(), layer.tensors)
    assert torch.equal(found.dequantized(), layer.weight)
    return found


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", [(64, 96), (33, 40)])
def test_packed_integers_of_every_size_are_read(tmp_path, bits, symmetric, shape):
    layer = pack_quantized(weight(*shape), bits, 8, symmetric=symmetric)
    check(tmp_path, layer, method(num_bits=bits, group_size=8))


@pytest.mark.parametrize("bits", [3, 5, 6])
def test_integers_that_never_straddle_words_are_read(tmp_path, bits):
    """compressed-tensors packed them so before version 0.14."""
    layer = pack_quantized(weight(), bits)
    codes = read_layer(tmp_path, method(num_bits=bits), layer.tensors).codes.long()
    fields = 32 // bits
    padded = torch.nn.functional.pad(codes, (0, -96 % fields)).view(64, -1, fields)
    words = (padded << (torch.arange(fields) * bits)).sum(-1)
    layer.tensors["weight_packed"] = words.int()
    check(tmp_path, layer, method(num_bits=bits))


def test_layers_of_several_groups_have_their_own_bits(tmp_path):
    groups = {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}}
    reader = CompressedTensors.from_config({"config_groups": groups})
    for bits in (4, 8):
        check(tmp_path, pack_quantized(weight(), bits), reader)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [None, 32])
def test_bytes_are_read_with_a_scale_for_each_output_or_group(tmp_path, symmetric, group_size):
    layer = int_quantized(weight(), group_size, symmetric=symmetric)
    check(tmp_path, layer, method(num_bits=8))


def test_float8_is_read_and_the_scale_of_inputs_left_out(tmp_path):
    layer = float_quantized(weight())
    check(tmp_path, layer)
    every = read_layer(tmp_path, method(), layer.tensors, every=True)
    assert set(every) == {"layer.weight"}


def test_one_scale_and_one_zero_point_are_for_the_whole_weight(tmp_path):
    codes = torch.arange(-128, 128).char().view(16, 16)
    tensors = {"weight": codes, "weight_scale": torch.tensor([0.5]),
               "weight_zero_point": torch.tensor([3]).char()}  # fmt: skip
    found = read_layer(tmp_path, method(), tensors)
    assert torch.equal(found.dequantized(), (codes.float() - 3) * 0.5)


def test_a_scale_may_be_for_a_block(tmp_path):
    codes = weight(40, 72).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3)
    tensors = {"weight": codes, "weight_scale": scale}
    found = read_layer(tmp_path, method(block_structure=[32, 32]), tensors)
    wide = scale.repeat_interleave(32, 0)[:40].repeat_interleave(32, 1)[:, :72]
    assert torch.equal(found.dequantized(), codes.float() * wide)


@pytest.mark.parametrize("is_nvfp4", [True, False])
def test_four_bit_floats_are_read(tmp_path, is_nvfp4):
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (8, 64), generator=generator)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    exact = torch.where(codes < 8, 1, -1) * values[codes & 7]
    size = 16 if is_nvfp4 else 32
    if is_nvfp4:
        scale = torch.rand(8, 4, generator=generator).to(torch.float8_e4m3fn)
        whole = torch.tensor([3.0])
        factors, extra = scale.float() / whole, {"weight_global_scale": whole}
    else:
        scale = torch.randint(120, 130, (8, 2), generator=generator).byte()
        factors, extra = torch.exp2(scale.float() - 127), {}
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).byte()
    tensors = {"weight_packed": packed, "weight_scale": scale, **extra}
    found = read_layer(tmp_path, method(), tensors)
    assert torch.equal(found.dequantized(), exact * factors.repeat_interleave(size, 1))


def test_inputs_in_the_order_of_their_activations_have_the_groups_of_g_idx(tmp_path):
    layer = pack_quantized(weight())
    in_order = read_layer(tmp_path, method(), layer.tensors)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1)) // 32
    found = read_layer(tmp_path, method(), layer.tensors | {"weight_g_idx": order.int()})
    expected = in_order.table[in_order.codes.int()] * in_order.scales[:, order]
    assert torch.equal(found.dequantized(), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_scale": None}, "layer.weight_scale is missing"),
        ({"weight_shape": None}, "layer.weight_shape is missing"),
        ({"weight_shape": torch.tensor([64, 95])}, "not that of a weight [64, 95] with num_bits"),
        ({"weight_scale": torch.ones(64, 5)}, "96 inputs of the weight cannot be divided so"),
        ({"weight_scale": torch.ones(7, 3)}, "[7, 3], which does not fit a weight of shape"),
        ({"weight_scale": torch.full((64, 3), torch.nan)}, "weight_scale has 192 values"),
        (
            {"weight_zero_point": torch.ones(7, 3).int()},
            "has shape [7, 3]; pack-quantized needs [8, 3]",
        ),
        (
            {"weight_zero_point": torch.ones(8, 4).int()},
            "has shape [8, 4]; pack-quantized needs [8, 3]",
        ),
        (
            {"weight_zero_point": torch.ones(64, 2).char()},
            "[64, 2]; compressed-tensors needs [64, 3]",
        ),
        (
            {"weight_zero_point": torch.ones(64, 3)},
            "has the dtype F32; compressed-tensors needs I8",
        ),
    ],
)
def test_a_damaged_layer_is_refused_by_the_name_of_its_tensor(tmp_path, changes, message):
    tensors = pack_quantized(weight()).tensors | changes
    if message.endswith("num_bits"):
        tensors["weight_packed"] = torch.ones(64, 13).int()
    assert message in refusal_of(tmp_path, method(), tensors)


def test_zero_points_of_bytes_have_the_shape_of_the_scales(tmp_path):
    tensors = int_quantized(weight(), 32).tensors | {"weight_zero_point": torch.ones(3, 64).char()}
    assert "shape [3, 64]; compressed-tensors needs [64, 3]" in refusal_of(
        tmp_path, method(), tensors
    )


def test_zero_points_that_the_config_promises_must_be_there(tmp_path):
    layer = pack_quantized(weight(), symmetric=False)
    check(tmp_path, layer, method(symmetric=False))
    tensors = layer.tensors | {"weight_zero_point": None}
    refusal = refusal_of(tmp_path, method(symmetric=False), tensors)
    assert "layer.weight_zero_point is missing" in refusal


def test_zero_points_beside_packed_integers_may_be_bytes(tmp_path):
    layer = pack_quantized(weight(), symmetric=False)
    packed = layer.tensors["weight_zero_point"].long()
    zeros = torch.stack([(packed >> shift) & 15 for shift in range(0, 32, 4)], 1).flatten(0, 1)
    layer.tensors["weight_zero_point"] = (zeros - 8).char()
    check(tmp_path, layer)


def test_a_factor_of_zero_of_all_scales_is_refused(tmp_path):
    tensors = {
        "weight_packed": torch.zeros(8, 32).byte(),
        "weight_scale": torch.ones(8, 4).to(torch.float8_e4m3fn),
        "weight_global_scale": torch.zeros(1),
    }
    assert "layer.weight_global_scale has 32 values" in refusal_of(tmp_path, method(), tensors)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"config_groups": ["a"]}, r"config_groups of config.json must be an object, got \['a'\]"),
        ({"config_groups": {"W4A16": ["Linear"]}}, r"config_groups\.W4A16 .* an object"),
        ({"config_groups": {"a": {"weights": 5}}}, "weights .* an object, got 5"),
        ({"transform_config": "u"}, "transform_config .* an object, got 'u'"),
    ],
)
def test_options_of_another_type_are_refused_by_name(config, message):
    with pytest.raises(CheckpointCorruptError, match=message):
        CompressedTensors.from_config(config)


@pytest.mark.parametrize("size", ["16", 0, 1.5])
def test_sizes_that_are_none_count_as_missing(size):
    reader = method(group_size=size, block_structure=[size, size])
    assert (reader.group_sizes, reader.blocks) == ([], [])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"format": "marlin-24"}, "'marlin-24'; quire reads dense, pack-quantized"),
        ({"config_groups": {"a": {"format": "sparse-24-bitmask"}}}, "'sparse-24-bitmask'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    ],
)
def test_other_formats_are_refused_by_name(config, message):
    with pytest.raises(RefusedError, match=message):
        CompressedTensors.from_config(config)
