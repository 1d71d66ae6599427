"""Layers of compressed-tensors are what their codes, scales and zero points stand for."""

import pytest
import torch
from prepared_tensors import read_layer, refusal_of
from quantized_layers import float_quantized, int_quantized, pack_quantized

from quire.errors import RefusedError
from quire_quantizations.checkpoints.compressed_tensors import CompressedTensors


def weight(outputs=64, inputs=96) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(0))


def method(**weights):
    weights = {"num_bits": 4, **(weights or {"group_size": 32})}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return CompressedTensors.from_config({"config_groups": groups, "ignore": ["re:.*lm_head"]})


FLOAT8 = {"num_bits": 8, "type": "float"}
FLOAT4 = {"num_bits": 4, "type": "float"}


def check(tmp_path, layer, reader=None):
    found = read_layer(tmp_path, reader or method(), layer.tensors)
    assert torch.equal(found.dequantized(), layer.weight)
    return found


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("shape", [(64, 96), (33, 40)])
def test_packed_integers_of_every_size_are_read(tmp_path, bits, symmetric, shape):
    layer = pack_quantized(weight(*shape), bits, 8, symmetric=symmetric)
    check(tmp_path, layer, method(num_bits=bits, group_size=8, symmetric=symmetric))


@pytest.mark.parametrize("bits", [3, 5, 6])
def test_integers_that_never_straddle_words_are_read(tmp_path, bits):
    """compressed-tensors packed them so before version 0.14."""
    layer = pack_quantized(weight(), bits)
    codes = read_layer(tmp_path, method(num_bits=bits, group_size=32), layer.tensors).codes.long()
    fields = 32 // bits
    padded = torch.nn.functional.pad(codes, (0, -96 % fields)).view(64, -1, fields)
    words = (padded << (torch.arange(fields) * bits)).sum(-1)
    layer.tensors["weight_packed"] = words.int()
    check(tmp_path, layer, method(num_bits=bits, group_size=32))


def test_layers_of_several_groups_have_their_own_bits(tmp_path):
    sizes = {"group_size": 32}
    groups = {name: {"weights": {"num_bits": bits, **sizes}} for name, bits in (("a", 4), ("b", 8))}
    reader = CompressedTensors.from_config({"config_groups": groups})
    for bits in (4, 8):
        check(tmp_path, pack_quantized(weight(), bits), reader)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group_size", [None, 32])
def test_bytes_are_read_with_a_scale_for_each_output_or_group(tmp_path, symmetric, group_size):
    layer = int_quantized(weight(), group_size, symmetric=symmetric)
    sizes = {"strategy": "channel"} if group_size is None else {"group_size": group_size}
    check(tmp_path, layer, method(num_bits=8, symmetric=symmetric, **sizes))


def test_float8_is_read_and_the_scale_of_inputs_left_out(tmp_path):
    layer, reader = float_quantized(weight()), method(**FLOAT8, strategy="channel")
    check(tmp_path, layer, reader)
    every = read_layer(tmp_path, reader, layer.tensors, every=True)
    assert set(every) == {"layer.weight"}


W8A8 = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}


@pytest.mark.parametrize(
    ("inputs", "are_int8"),
    [
        (W8A8, True),
        (W8A8 | {"dynamic": False, "strategy": "tensor"}, True),
        (W8A8 | {"type": "float"}, False),
        (W8A8 | {"num_bits": 4}, False),
        (None, False),
    ],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_know_whether_their_inputs_are_quantized_to_integers(
    tmp_path, inputs, are_int8, bits
):
    """By the scheme of their layer; a scale of inputs that is stored is left out."""
    own = {"weights": {"num_bits": bits, "group_size": 32}, "input_activations": inputs}
    other = {"weights": {"num_bits": 2, "group_size": 32}, "input_activations": W8A8}
    reader = CompressedTensors.from_config({"config_groups": {"a": other, "b": own}})
    layer = pack_quantized(weight(), bits)
    layer.tensors["input_scale"] = torch.ones(1)
    assert check(tmp_path, layer, reader).has_int8_inputs is are_int8


def test_one_scale_and_one_zero_point_are_for_the_whole_weight(tmp_path):
    codes = torch.arange(-128, 128).char().view(16, 16)
    tensors = {"weight": codes, "weight_scale": torch.tensor([0.5]),
               "weight_zero_point": torch.tensor([3]).char()}  # fmt: skip
    found = read_layer(tmp_path, method(num_bits=8, strategy="tensor", symmetric=False), tensors)
    assert torch.equal(found.dequantized(), (codes.float() - 3) * 0.5)


def test_a_scale_may_be_for_a_block(tmp_path):
    codes = weight(40, 72).to(torch.float8_e4m3fn)
    scale = torch.rand(2, 3)
    tensors = {"weight": codes, "weight_scale": scale}
    wide = scale.repeat_interleave(32, 0)[:40].repeat_interleave(32, 1)[:, :72]
    for block in ([32, 32], "32x32"):
        found = read_layer(tmp_path, method(**FLOAT8, block_structure=block), tensors)
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
    found = read_layer(tmp_path, method(**FLOAT4, group_size=size), tensors)
    assert torch.equal(found.dequantized(), exact * factors.repeat_interleave(size, 1))


def test_inputs_in_the_order_of_their_activations_have_the_groups_of_g_idx(tmp_path):
    layer = pack_quantized(weight())
    in_order = read_layer(tmp_path, method(), layer.tensors)
    order = torch.randperm(96, generator=torch.Generator().manual_seed(1)) // 32
    found = read_layer(tmp_path, method(), layer.tensors | {"weight_g_idx": order.int()})
    expected = in_order.table[in_order.codes.int()] * in_order.scales[:, order]
    assert torch.equal(found.dequantized(), expected)
    none = layer.tensors | {"weight_g_idx": torch.full((96,), -1).int()}
    assert read_layer(tmp_path, method(), none).groups is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_scale": None}, "layer.weight_scale is missing"),
        ({"weight_shape": None}, "layer.weight_shape is missing"),
        ({"weight_packed": None}, "layer.weight_packed is missing"),
        ({"weight_shape": torch.tensor([64, 88])}, "weight [64, 88] (layer.weight_shape) with the"),
        ({"weight_packed": torch.ones(64, 13).int()}, "config_groups.group_0 (num_bits 4, int, gr"),
        ({"weight_scale": torch.ones(64, 5)}, "[64, 5], which does not fit a weight of shape"),
        ({"weight_scale": torch.ones(64, 6)}, "(num_bits 4, int, group of 32)"),
        ({"weight_scale": torch.ones(64, 1)}, "[64, 1], which does not fit a weight of shape"),
        ({"weight_scale": torch.ones(7, 3)}, "[7, 3], which does not fit a weight of shape"),
        ({"weight_g_idx": torch.full((96,), 3)}, "has groups from 3 to 3, but there"),
        (
            {"weight_g_idx": torch.arange(-1, 95) // 32},
            "g_idx in model.safetensors has groups from -1 to 2",
        ),
        (
            {"weight_scale": torch.full((64, 3), torch.nan)},
            "scale in model.safetensors has 192 values",
        ),
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
    assert message in refusal_of(tmp_path, method(), tensors)


def test_zero_points_of_bytes_have_the_shape_of_the_scales(tmp_path):
    tensors = int_quantized(weight(), 32).tensors | {"weight_zero_point": torch.ones(3, 64).char()}
    reader = method(num_bits=8, group_size=32)
    assert "[3, 64]; compressed-tensors needs [64, 3]" in refusal_of(tmp_path, reader, tensors)


def test_zero_points_that_the_config_promises_must_be_there(tmp_path):
    packed = pack_quantized(weight(), symmetric=False)
    for layer, bits in ((packed, 4), (int_quantized(weight(), 32, symmetric=False), 8)):
        reader = method(num_bits=bits, group_size=32, symmetric=False)
        check(tmp_path, layer, reader)
        refusal = refusal_of(tmp_path, reader, layer.tensors | {"weight_zero_point": None})
        assert "layer.weight_zero_point is missing" in refusal


def test_numbers_that_are_none_and_scales_below_zero_are_refused(tmp_path):
    layer, reader = float_quantized(weight()), method(**FLOAT8, strategy="channel")
    wrong = layer.tensors["weight"].float()
    wrong[3, 5] = torch.nan
    refusal = refusal_of(
        tmp_path, reader, layer.tensors | {"weight": wrong.to(torch.float8_e4m3fn)}
    )
    assert "layer.weight in model.safetensors has 1 values that are infinite or NaN" in refusal
    below = layer.tensors | {"weight_scale": -layer.tensors["weight_scale"]}
    assert "scale in model.safetensors has 64 scales below 0" in refusal_of(tmp_path, reader, below)
    none = layer.tensors | {"weight_scale": torch.zeros(64, 1)}
    assert "layer.weight in model.safetensors has numbers other than 0" in refusal_of(
        tmp_path, reader, none
    )


def test_a_weight_that_was_not_compressed_is_refused_with_its_scale(tmp_path):
    """As it is saved with the quantization_status `frozen`."""
    tensors = float_quantized(weight()).tensors | {"weight": weight().bfloat16()}
    refusal = refusal_of(tmp_path, method(**FLOAT8, strategy="channel"), tensors)
    assert "layer.weight in model.safetensors has the dtype BF16; a weight with" in refusal


@pytest.mark.parametrize("actorder", ["group", "dynamic", True, "static", False, None])
def test_groups_of_inputs_that_the_config_promises_must_be_there(tmp_path, actorder):
    tensors = pack_quantized(weight()).tensors
    reader = method(group_size=32, actorder=actorder)
    if actorder in ("group", "dynamic", True):
        assert "layer.weight_g_idx is missing" in refusal_of(tmp_path, reader, tensors)
    else:
        assert read_layer(tmp_path, reader, tensors).groups is None


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
    reader = method(**FLOAT4, group_size=16)
    refusal = refusal_of(tmp_path, reader, tensors)
    assert "layer.weight_global_scale in model.safetensors has 32 values" in refusal


def groups(**targets):
    """Return a reader of groups with other sizes each: of 8, 16, 32 inputs and so on."""
    made = {
        name: {"targets": targets, "weights": {"num_bits": 4, "group_size": 8 << index}}
        for index, (name, targets) in enumerate(targets.items())
    }
    return CompressedTensors.from_config({"config_groups": made}).options


@pytest.mark.parametrize(
    ("targets", "first"),
    [
        ({"a": ["Linear"], "b": ["re:.*down_proj"]}, "b"),
        ({"a": ["re:.*down_proj"], "b": ["m.0.down_proj"], "c": ["Linear"]}, "b"),
        ({"a": ["m.1.down_proj"], "b": ["Linear"]}, "b"),
        ({"a": ["re:down_proj"], "b": ["Linear"]}, "b"),
        ({"a": ["re:m.*"], "b": ["re:.*0.*"], "c": ["Linear"]}, "b"),
        ({"a": ["m.1.down_proj"], "b": ["re:.*up_proj"]}, "a"),
    ],
)
def test_a_layer_has_the_scheme_of_its_name_then_of_a_pattern_then_of_a_class(targets, first):
    assert groups(**targets).schemes_of("m.0.down_proj", is_float=False)[0].name == first


def test_a_layer_whose_tensors_fit_another_group_has_that_groups_scheme(tmp_path):
    """Names of modules in a config may be those of another release of transformers."""
    reader = CompressedTensors(groups(a=["layer"], b=["Linear"]))
    for size in (8, 16):
        layer = pack_quantized(weight(), group_size=size)
        assert check(tmp_path, layer, reader).group_size == size
    refusal = refusal_of(tmp_path, reader, pack_quantized(weight()).tensors)
    assert "config_groups.a (num_bits 4, int, group of 8) or config_groups.b" in refusal


@pytest.mark.parametrize("scheme", [None, {"num_bits": 8, "type": "float"}])
def test_scales_of_a_float8_cache_are_those_of_keys_and_values(tmp_path, scheme):
    config = {"config_groups": {}, "kv_cache_scheme": scheme}
    others = {"m.k_proj.output_scale": torch.ones(1), "m.v_proj.output_scale": torch.ones(1),
              "m.k_scale": torch.ones(1), "m.q_proj.output_scale": torch.ones(1),
              "m.q_scale": torch.ones(1)}  # fmt: skip
    reader = CompressedTensors.from_config(config)
    found = read_layer(tmp_path, reader, {"weight": weight()}, others, every=True)
    assert set(found) == {"layer.weight", "m.k_scale", "m.k_proj.k_scale", "m.v_proj.v_scale"}


@pytest.mark.parametrize(
    "changes", [{"num_bits": 4}, {"type": "int"}, {"strategy": "attn_head"}, {"symmetric": False}]
)
def test_scales_of_another_cache_are_left_out(tmp_path, changes):
    config = {"kv_cache_scheme": {"num_bits": 8, "type": "float", **changes}}
    others = {"m.k_proj.output_scale": torch.ones(1), "m.k_scale": torch.ones(4, 1, 1),
              "m.v_zero_point": torch.ones(1)}  # fmt: skip
    reader = CompressedTensors.from_config(config)
    found = read_layer(tmp_path, reader, {"weight": weight()}, others, every=True)
    assert set(found) == {"layer.weight"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"format": "marlin-24"}, "'marlin-24'; quire reads compressed-tensors with dense, pack"),
        ({"config_groups": {"a": {"format": "sparse-24-bitmask"}}}, "'sparse-24-bitmask'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
    ],
)
def test_other_formats_are_refused_by_name(config, message):
    with pytest.raises(RefusedError, match=message):
        CompressedTensors.from_config(config)
