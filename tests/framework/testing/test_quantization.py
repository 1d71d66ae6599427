"""The kit of quantization methods notices a method that is wrong."""

import pytest
import torch
from torch import nn

from quire.errors import SettingsError
from quire.interfaces.quantization import LinearMethod, Quantization, QuantizationCapabilities
from quire.testing.quantization import QuantizationContract


class RoundedLinear(LinearMethod):
    """int8 in plain torch, one scale a row."""

    has_rows = True

    def create_weights(self, layer, out_features, in_features):
        layer.register_parameter(
            "weight", nn.Parameter(torch.zeros(out_features, in_features), requires_grad=False)
        )

    def finish_loading(self, layer):
        weight = layer.weight
        layer.scale = nn.Parameter(weight.abs().amax(1, keepdim=True) / 127, requires_grad=False)
        layer.weight = nn.Parameter((weight / layer.scale).round().to(torch.int8), False)

    def kept(self, layer):
        return layer.weight.float() * layer.scale

    def rows(self, layer, token_ids):
        return self.kept(layer)[token_ids]

    def apply(self, layer, x):
        return x @ self.kept(layer).T


class Rounded(Quantization):
    method = RoundedLinear

    @classmethod
    def from_config(cls, config):
        if config:
            raise SettingsError(f"it takes no options, got {', '.join(config)}")
        return cls()

    def linear_method(self, module_name):
        return self.method()


class Contract(QuantizationContract):
    quantization = Rounded
    capabilities = QuantizationCapabilities(
        devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}), weight_bits=8.5
    )
    max_error = 0.005


class TestRounded(Contract):
    """A right method passes."""


class FourBits(RoundedLinear):
    def finish_loading(self, layer):
        super().finish_loading(layer)
        layer.weight.copy_(layer.weight // 16 * 16)


class Transposed(RoundedLinear):
    def create_weights(self, layer, out_features, in_features):
        super().create_weights(layer, in_features, out_features)


class HalfType(RoundedLinear):
    def apply(self, layer, x):
        return super().apply(layer, x).bfloat16()


class WritesInput(RoundedLinear):
    def apply(self, layer, x):
        return super().apply(layer, x.mul_(1.0).add_(0.0)) + 0 * x.zero_().sum()


class DependsOnBatch(RoundedLinear):
    def apply(self, layer, x):
        return super().apply(layer, x) * (1 + 1e-2 * (len(x) > 2))


class SaysInvariant(RoundedLinear):
    is_batch_invariant = True

    def apply(self, layer, x):
        return super().apply(layer, x) * (1 + 1e-6 * (len(x) > 2))


class TwoBiases(RoundedLinear):
    def apply_with_bias(self, layer, x, bias):
        return self.apply(layer, x) + 2 * bias


class WrongRows(RoundedLinear):
    def rows(self, layer, token_ids):
        return self.kept(layer)[token_ids.flip(0)]


class KeepsBoth(RoundedLinear):
    def finish_loading(self, layer):
        layer.whole = nn.Parameter(layer.weight.clone(), requires_grad=False)
        super().finish_loading(layer)


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (FourBits, "kept_elements_are_as_close_as_declared"),
        (Transposed, "kept_elements_are_as_close_as_declared"),
        (HalfType, "products_are_those_of_the_kept_weight"),
        (WritesInput, "products_are_those_of_the_kept_weight"),
        (DependsOnBatch, "products_are_those_of_the_kept_weight"),
        (SaysInvariant, "a_batch_invariant_row_has_the_same_bits_alone"),
        (TwoBiases, "a_bias_is_added_once"),
        (WrongRows, "rows_are_those_of_the_kept_weight"),
    ],
)
def test_a_wrong_method_fails(wrong, test):
    class Changed(Rounded):
        method = wrong

    class Wrong(Contract):
        quantization = Changed

    with torch.inference_mode(), pytest.raises(AssertionError):
        getattr(Wrong(), f"test_{test}")((96, 160))


def test_a_method_that_loses_digits_is_not_lossless():
    with torch.inference_mode(), pytest.raises(AssertionError, match="lossless_for has bfloat16"):
        Contract().test_lossless_types_are_kept_exactly((96, 160), "bfloat16")


def test_a_method_that_keeps_the_whole_weight_has_more_bits_than_declared():
    class Changed(Rounded):
        method = KeepsBoth

    class Wrong(Contract):
        quantization = Changed

    with torch.inference_mode(), pytest.raises(AssertionError, match=r"weight_bits is 8\.5"):
        Wrong().test_memory_is_what_is_declared()


def test_a_method_that_takes_any_option_fails():
    class Changed(Rounded):
        @classmethod
        def from_config(cls, config):
            return cls()

    class Wrong(Contract):
        quantization = Changed

    with pytest.raises(pytest.fail.Exception):
        Wrong().test_an_unknown_option_is_refused()
