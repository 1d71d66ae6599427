"""The kit of quantization methods, on those that ship."""

import pytest
import torch
from quantized_layers import grouped
from torch import Tensor, nn

from quire.interfaces.quantization import LinearMethod
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.native.availability import native_unavailable_reason
from quire.plugins.loading import load_plugins
from quire.testing.quantization import QuantizationContract
from quire_quantizations.methods import (
    BFloat16Weights,
    CheckpointCodes,
    CheckpointCodesInt8,
    Float16Weights,
    Float32Weights,
    Int4Products,
    Int4Weights,
    Int8Products,
    Int8Weights,
)

OFFERED = load_plugins().registries.quantizations

pytestmark = pytest.mark.skipif(
    native_unavailable_reason() is not None, reason=str(native_unavailable_reason())
)


class TestBfloat16(QuantizationContract):
    quantization = BFloat16Weights
    capabilities = OFFERED.entry("bf16").capabilities
    max_error = 2**-8


class TestFloat16(QuantizationContract):
    quantization = Float16Weights
    capabilities = OFFERED.entry("float16").capabilities


class TestFloat32(QuantizationContract):
    quantization = Float32Weights
    capabilities = OFFERED.entry("float32").capabilities


class TestInt8WeightOnly(QuantizationContract):
    quantization = Int8Weights
    capabilities = OFFERED.entry("int8_weight_only").capabilities
    max_error = 0.005


class TestInt8(TestInt8WeightOnly):
    quantization = Int8Products
    capabilities = OFFERED.entry("int8").capabilities
    product_tolerance = 0.02  # inputs are rounded to 8 bits


class TestInt4WeightOnly(QuantizationContract):
    quantization = Int4Weights
    capabilities = OFFERED.entry("int4_weight_only").capabilities
    max_error = 0.13  # the largest positive element of a group is clipped by an eighth


class TestInt4(TestInt4WeightOnly):
    quantization = Int4Products
    capabilities = OFFERED.entry("int4").capabilities
    product_tolerance = 0.02


class TestCodes(QuantizationContract):
    quantization = CheckpointCodes
    capabilities = OFFERED.entry("codes").capabilities
    max_error = 0.08  # of numbers of 4 bits

    def load(self, method: LinearMethod, layer: nn.Module, weight: Tensor) -> None:
        """Load two slices of a quantized checkpoint."""
        method.create_weights(layer, *weight.shape)
        half = len(weight) // 2
        for first, rows in ((0, weight[:half]), (half, weight[half:])):
            made = grouped(rows.float(), 4, 32, symmetric=False)
            scales = made.scales.float()
            offsets = -made.zeros * scales
            codes = QuantizedWeight(made.codes.byte(), scales, torch.arange(16.0), 32, offsets)
            method.load_quantized(layer, codes, first)
        method.finish_loading(layer)


class TestCodesInt8(TestCodes):
    quantization = CheckpointCodesInt8
    capabilities = OFFERED.entry("codes_int8").capabilities
    product_tolerance = 0.02
