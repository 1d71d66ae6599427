"""Layers of quantized checkpoints: what is kept as codes, and what is not."""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from kernel_device import DEVICE
from quantized_layers import grouped
from quantized_weights import random_weight
from torch import nn

from quire.interfaces.quantization import GroupedWeight, LayerSettings
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.plugins.loading import load_plugins
from quire.testing.quantization import QuantizationContract
from quire_quantizations.triton.codes_linear import CodesOfCheckpoint

SETTINGS = LayerSettings(torch.float16, DEVICE)
SHAPE = (48, 64)


class KeptCodes(QuantizationContract):
    """The kit, on weights that a checkpoint has in groups of 32."""

    quantization = CodesOfCheckpoint
    capabilities = load_plugins().registries.quantizations.entry("triton_codes").capabilities
    device = DEVICE.type
    shapes: ClassVar = ((65, 48), (64, 96))
    bits: ClassVar[int]

    def load(self, method, layer, weight):
        outputs, inputs = weight.shape
        method.create_weights(layer, outputs, inputs)
        made = grouped(weight.float().cpu(), self.bits, 32, symmetric=False)
        scales = made.scales.float()
        codes = QuantizedWeight(
            made.codes.byte(), scales, torch.arange(2.0**self.bits), 32, -made.zeros * scales
        )
        half = outputs // 2
        for rows in (torch.arange(half, outputs), torch.arange(half)):
            method.load_quantized(layer, codes.rows(rows), int(rows[0]))
        method.finish_loading(layer)


class TestEightBits(KeptCodes):
    bits = 8
    max_error = 2**-8


class TestFourBitsInHalfPrecision(KeptCodes):
    bits = 4
    max_error = 2**-4
    dtype = torch.float16
    product_tolerance = 2**-9


def made(settings=SETTINGS, shape=SHAPE):
    method = CodesOfCheckpoint.from_config({}).for_layers(settings).linear_method("a.q_proj")
    layer = nn.Module()
    method.create_weights(layer, *shape)
    return method, layer


def loaded(*weights, settings=SETTINGS):
    outputs = sum(len(weight.codes) for weight in weights)
    method, layer = made(settings, (outputs, weights[0].shape[1]))
    first = 0
    for weight in weights:
        method.load_quantized(layer, weight, first)
        first += len(weight.codes)
    method.finish_loading(layer)
    return method, layer


def inputs(num_rows=3, columns=64):
    x = torch.randn(num_rows, columns, generator=torch.Generator().manual_seed(5))
    return (x / columns**0.5).to(DEVICE, SETTINGS.dtype)


def check(method, layer, *weights):
    dense = torch.cat([weight.dequantized() for weight in weights]).to(DEVICE)
    x = inputs(columns=dense.shape[1])
    found, expected = method.apply(layer, x), x.float() @ dense.T
    torch.testing.assert_close(found.float(), expected, rtol=2**-9, atol=2**-8)
    bias = torch.ones(len(dense), dtype=x.dtype, device=DEVICE)
    found = method.apply_with_bias(layer, x, bias)
    torch.testing.assert_close(found.float(), expected + 1, rtol=2**-9, atol=2**-8)


def test_a_layer_without_weights_has_no_memory():
    _, layer = made()
    assert layer.weight.is_meta
    assert layer.weight.shape == SHAPE


def test_a_kept_weight_is_as_narrow_as_its_codes():
    weight = random_weight("uint4", (64, 256), 128, zeros="integers")
    method, layer = loaded(weight)
    check(method, layer, weight)
    assert layer.weight is None
    num_bytes = sum(buffer.nbytes for buffer in layer.buffers())
    assert num_bytes == 64 * (256 // 2 + 2 * (2 + 1))  # codes, scales and zero points


def test_what_the_checkpoint_has_not_quantized_is_an_ordinary_weight():
    method, layer = made()
    method.expect(layer, torch.float32)
    layer.weight.copy_(torch.eye(*SHAPE))
    method.finish_loading(layer)
    assert layer.weight.dtype is SETTINGS.dtype
    x = inputs()
    assert torch.equal(method.apply(layer, x), x[:, :48])
    bias = torch.ones(48, dtype=x.dtype, device=DEVICE)
    assert torch.equal(method.apply_with_bias(layer, x, bias), x[:, :48] + 1)
    assert method.grouped_product([GroupedWeight(method, layer, None)]) is None
    assert not method.is_batch_invariant


@pytest.mark.parametrize("dense_first", [True, False])
def test_a_layer_of_which_a_part_is_not_quantized_is_an_ordinary_weight(dense_first):
    weight = random_weight("int4", (16, 64), 32)
    method, layer = made()
    if not dense_first:
        method.load_quantized(layer, weight, 32)
    method.expect(layer, torch.float32)
    layer.weight[:32].copy_(torch.eye(32, 64))
    if dense_first:
        method.load_quantized(layer, weight, 32)
    method.finish_loading(layer)
    expected = torch.cat([torch.eye(32, 64), weight.dequantized()]).to(SETTINGS.dtype)
    assert torch.equal(layer.weight.cpu(), expected)


def test_a_layer_of_which_nothing_is_loaded_has_an_ordinary_weight():
    method, layer = made()
    method.finish_loading(layer)
    assert layer.weight.device.type == DEVICE.type


@pytest.mark.parametrize(
    "changed",
    [
        {"table": "int8"},
        {"zeros": "integers"},
        {"group_size": 64},
        {"groups": (torch.arange(128) // 32).flip(0)},
    ],
    ids=str,
)
def test_merged_matrices_may_have_several_formats(changed):
    first = random_weight("int4", (20, 128), 32)
    options = {"table": "int4", "shape": (12, 128), "group_size": 32, "seed": 1, **changed}
    weights = [first, random_weight(**options), random_weight("int4", (7, 128), 32, seed=2)]
    method, layer = loaded(*weights)
    assert len(method._slices) == 3
    check(method, layer, *weights)


def test_merged_matrices_of_one_format_are_one_weight():
    weights = [random_weight("e4m3", (20, 128), 64, seed=seed) for seed in range(3)]
    method, layer = loaded(*weights)
    assert len(method._slices) == 1
    check(method, layer, *weights)


def test_in_batch_invariant_mode_the_method_says_so():
    weight = random_weight("int4", (20, 64), 32)
    assert not loaded(weight)[0].is_batch_invariant
    assert loaded(weight, settings=replace(SETTINGS, batch_invariant=True))[0].is_batch_invariant


def test_experts_are_views_of_one_stack():
    weights = [random_weight("uint4", (48, 64), 32, zeros="integers", seed=s) for s in range(3)]
    experts = [loaded(weight) for weight in weights]
    grouped_weights = [GroupedWeight(method, layer, None) for method, layer in experts]
    product = grouped_weights[0].method.grouped_product(grouped_weights)
    stores = {layer.codes_0.untyped_storage().data_ptr() for _, layer in experts}
    assert len(stores) == 1
    for (method, layer), weight in zip(experts, weights, strict=True):
        check(method, layer, weight)
    x = inputs(4)
    out = product(x, torch.tensor([1, 1, 4], device=DEVICE))
    assert torch.equal(out[:1], experts[0][0].apply(experts[0][1], x[:1]))


def test_experts_of_several_formats_have_no_common_product():
    experts = [loaded(random_weight(table, (48, 64), 32)) for table in ("int4", "int8")]
    weights = [GroupedWeight(method, layer, None) for method, layer in experts]
    assert weights[0].method.grouped_product(weights) is None
    halves = [loaded(*(random_weight(t, (24, 64), 32) for t in ("int4", "int8")))] * 2
    weights = [GroupedWeight(method, layer, None) for method, layer in halves]
    assert weights[0].method.grouped_product(weights) is None


def test_a_method_without_settings_is_an_error():
    with pytest.raises(RuntimeError, match="no settings for the weight of lm_head"):
        CodesOfCheckpoint().linear_method("lm_head")
