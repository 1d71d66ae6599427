"""Conformance kit of quantization methods: stored weights, products and memory of a layer.

    from quire.testing.quantization import QuantizationContract

    class TestAcmeInt8(QuantizationContract):
        quantization = AcmeInt8
        capabilities = ACME_CAPABILITIES
        max_error = 0.01

pytest collects the inherited tests. A method that only reads prepared checkpoints overrides `load`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from quire.errors import QuireError
from quire.interfaces.quantization import (
    GroupedWeight,
    LayerSettings,
    LinearMethod,
    Quantization,
    QuantizationCapabilities,
)
from quire.machine.instruction_sets import bf16_unavailable_reason, cpu_flags, here
from quire.testing.probes import check_probe

NUM_ROWS = (1, 2, 3, 8, 33)
PRODUCT_TOLERANCE = 1e-4  # of the largest output
MEMORY_SLACK = 1.25  # padding of small layers


class QuantizationContract:
    """Tests that a quantization method must pass.

    Attributes:
        quantization: Quantization class under test.
        capabilities: Capabilities that it declares at registration.
        config: Options for `from_config`.
        shapes: Weights `[out_features, in_features]` to try; the last one is the largest.
        max_error: Largest error of a stored element, relative to the largest element of the weight.
            Dtypes in `capabilities.lossless_for` have none.
        device: Device of the layers.
        dtype: Compute dtype of the layers.
        product_tolerance: Largest error of a product, relative to its largest element.
        module_name: Name of the layer, for methods that treat layers differently.
    """

    quantization: ClassVar[type[Quantization]]
    capabilities: ClassVar[QuantizationCapabilities]
    config: ClassVar[Mapping[str, Any]] = {}
    shapes: ClassVar[tuple[tuple[int, int], ...]] = ((48, 64), (96, 160), (384, 256))
    max_error: ClassVar[float] = 0.0
    device: ClassVar[str] = "cpu"
    dtype: ClassVar[torch.dtype] = torch.float32
    product_tolerance: ClassVar[float] = PRODUCT_TOLERANCE
    module_name: ClassVar[str] = "model.layers.0.mlp.down_proj"

    def load(self, method: LinearMethod, layer: nn.Module, weight: Tensor) -> None:
        """Load a weight as from an unquantized checkpoint: in two slices, then repacked."""
        out_features, in_features = weight.shape
        method.create_weights(layer, out_features, in_features)
        parameter = layer.get_parameter("weight")
        assert tuple(parameter.shape) == (out_features, in_features), (
            f"create_weights registers `weight` {tuple(parameter.shape)}; expected "
            f"{(out_features, in_features)}, [out_features, in_features]"
        )
        half = out_features // 2
        for rows in (slice(0, half), slice(half, out_features)):
            method.load(layer, weight[rows], rows.start)
        method.finish_loading(layer)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests by the shapes, and by the dtypes that are stored exactly."""
        if "shape" in metafunc.fixturenames:
            metafunc.parametrize("shape", self.shapes, ids=str)
        if "lossless" in metafunc.fixturenames:
            metafunc.parametrize("lossless", sorted(self.capabilities.lossless_for))
        if "product_dtype" in metafunc.fixturenames:
            metafunc.parametrize("product_dtype", sorted(self.capabilities.product_dtypes))

    @pytest.fixture(autouse=True)
    def loaded(self) -> Iterator[None]:
        """Run the probe of the method, and run without gradients."""
        probe = self.capabilities.probe
        if probe is not None and (reason := resolve_name(probe)()) is not None:
            pytest.skip(f"this machine cannot run the method: {reason}")
        with torch.inference_mode():
            yield

    def test_the_probe_returns_a_reason_or_none(self) -> None:
        """It is called in a fresh process, and must not import torch."""
        check_probe(self.capabilities.probe)

    def test_kept_elements_are_as_close_as_declared(self, shape: tuple[int, int]) -> None:
        """Compare every element of the stored weight with the checkpoint."""
        weight = self._weight(shape)
        error = (self._kept(*self._layer(weight), shape) - weight).abs().max() / weight.abs().max()
        assert error <= self.max_error + 1e-6, (
            f"a stored element is off by {error:.5f} of the largest one; max_error is "
            f"{self.max_error}"
        )

    def test_lossless_types_are_kept_exactly(self, shape: tuple[int, int], lossless: str) -> None:
        """Elements of the declared dtypes are stored bit for bit."""
        dtype = getattr(torch, lossless)
        weight = self._weight(shape).to(dtype)
        method, layer = self._layer(weight, self._quantization().lossless())
        kept = self._kept(method, layer, shape)
        assert torch.equal(kept, weight.to(self.dtype)), (
            f"lossless_for has {lossless}, but {int((kept != weight).sum())} elements changed"
        )

    def test_products_are_those_of_the_kept_weight(self, shape: tuple[int, int]) -> None:
        """Compare `x @ weight.T` for several batch sizes; the inputs must not change."""
        method, layer = self._layer(self._weight(shape))
        kept = self._kept(method, layer, shape).double()
        for num_rows in NUM_ROWS:
            x = self._inputs(num_rows, shape[1])
            before = x.clone()
            out = method.apply(layer, x)
            assert torch.equal(x, before), "apply() must not change its input"
            assert out.shape == (num_rows, shape[0]), (
                f"apply() of {num_rows} rows has shape {tuple(out.shape)}; expected "
                f"{(num_rows, shape[0])}"
            )
            assert out.dtype == self.dtype, f"apply() returns {out.dtype}; expected {self.dtype}"
            self._check_close(out, x.double() @ kept.T, f"apply() of {num_rows} rows")

    def test_products_in_a_compute_dtype_are_those_of_rounded_inputs(
        self, shape: tuple[int, int], product_dtype: str
    ) -> None:
        """`for_dtype` rounds both inputs; sums are as exact as the other products."""
        if self.device == "cpu" and (reason := bf16_unavailable_reason(here(), cpu_flags())):
            pytest.skip(f"no engine of this machine computes in {product_dtype}: {reason}")
        dtype = getattr(torch, product_dtype)
        method, layer = self._layer(
            self._weight(shape).to(dtype), self._quantization().for_dtype(product_dtype).lossless()
        )
        kept = self._kept(method, layer, shape).double()
        bias = self._inputs(1, shape[0])[0]
        alone = {}
        for num_rows in NUM_ROWS:
            x = self._inputs(max(NUM_ROWS), shape[1])[:num_rows]
            expected = x.to(dtype).double() @ kept.T
            alone[num_rows] = method.apply(layer, x)
            what = f"apply() of {num_rows} rows in {product_dtype}"
            self._check_close(alone[num_rows], expected, what)
            added = method.apply_with_bias(layer, x, bias)
            self._check_close(added, expected + bias.double(), f"{what} with a bias")
        if method.is_batch_invariant:
            together = alone[max(NUM_ROWS)]
            assert all(torch.equal(out, together[: len(out)]) for out in alone.values()), (
                f"rows in {product_dtype} have other bits in another batch, but is_batch_invariant "
                "is True"
            )

    def test_a_bias_is_added_once(self, shape: tuple[int, int]) -> None:
        """`apply_with_bias` equals `apply` plus the bias."""
        method, layer = self._layer(self._weight(shape))
        bias = self._inputs(1, shape[0])[0]
        for num_rows in NUM_ROWS:
            x = self._inputs(num_rows, shape[1])
            expected = method.apply(layer, x).double() + bias.double()
            self._check_close(method.apply_with_bias(layer, x, bias), expected, "apply_with_bias()")

    def test_rows_are_those_of_the_kept_weight(self, shape: tuple[int, int]) -> None:
        """`rows` looks up embeddings in a weight that a tied head shares."""
        method, layer = self._layer(self._weight(shape))
        if not method.has_rows:
            pytest.skip("the method declares no rows")
        token_ids = torch.tensor([shape[0] - 1, 0, 3, 3], device=self.device)
        expected = self._kept(method, layer, shape)[token_ids]
        self._check_close(method.rows(layer, token_ids), expected.double(), "rows()")

    def test_a_batch_invariant_row_has_the_same_bits_alone(self, shape: tuple[int, int]) -> None:
        """Compare rows alone and in a batch, if the method declares `is_batch_invariant`."""
        method, layer = self._layer(self._weight(shape))
        if not method.is_batch_invariant:
            pytest.skip("the method is not batch-invariant")
        x = self._inputs(max(NUM_ROWS), shape[1])
        together = method.apply(layer, x)
        for num_rows in NUM_ROWS:
            alone = method.apply(layer, x[:num_rows])
            assert torch.equal(alone, together[:num_rows]), (
                f"rows in a batch of {num_rows} have other bits than in one of {len(x)}, but "
                "is_batch_invariant is True"
            )

    @pytest.mark.parametrize("has_bias", [False, True])
    def test_rows_of_several_experts_have_their_own_experts_products(
        self, shape: tuple[int, int], has_bias: bool
    ) -> None:
        """`grouped_product` equals each expert's own product, if the method has one."""
        counts = (2, 0, 5)
        loaded = [self._layer(self._weight(shape) * (1 + expert)) for expert in range(len(counts))]
        biases = self._inputs(len(counts), shape[0])
        weights = [
            GroupedWeight(method, layer, bias if has_bias else None)
            for (method, layer), bias in zip(loaded, biases, strict=True)
        ]
        product = weights[0].method.grouped_product(weights)
        if product is None:
            pytest.skip("the method has no grouped product")
        inputs = [self._inputs(count, shape[1]) for count in counts]
        ends = torch.tensor(counts, device=self.device).cumsum(0)
        out = product(torch.cat(inputs), ends)
        expected = [
            weight.method.apply(weight.layer, rows) + (biases[expert] if has_bias else 0.0)
            for expert, (weight, rows) in enumerate(zip(weights, inputs, strict=True))
        ]
        self._check_close(out.double(), torch.cat(expected).double(), "grouped_product()")

    def test_memory_is_what_is_declared(self) -> None:
        """Parameters and buffers of the layer have at most `weight_bits` per element."""
        bits = self.capabilities.weight_bits
        if bits is None:
            pytest.skip("the method declares no weight_bits")
        shape = self.shapes[-1]
        _, layer = self._layer(self._weight(shape).to(torch.bfloat16))
        tensors = [*layer.parameters(), *layer.buffers()]
        held = 8 * sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        found = held / (shape[0] * shape[1])
        assert found <= bits * MEMORY_SLACK, (
            f"the layer has {found:.2f} bits per element; weight_bits is {bits}"
        )

    def test_an_unknown_option_is_refused(self) -> None:
        """`from_config` raises an error that names the option."""
        with pytest.raises(QuireError, match="no_such_option"):
            self.quantization.from_config({**self.config, "no_such_option": 1})

    def _quantization(self) -> Quantization:
        return self.quantization.from_config(self.config)

    def _layer(
        self, weight: Tensor, quantization: Quantization | None = None
    ) -> tuple[LinearMethod, nn.Module]:
        settings = LayerSettings(self.dtype, torch.device(self.device))
        chosen = (quantization or self._quantization()).for_layers(settings)
        method = chosen.linear_method(self.module_name)
        assert method is not None, f"linear_method({self.module_name!r}) is None"
        layer = nn.Module()
        self.load(method, layer, weight)
        return method, layer

    def _kept(self, method: LinearMethod, layer: nn.Module, shape: tuple[int, int]) -> Tensor:
        """Return the weight that the layer computes with, `[out, in]`: products of unit vectors."""
        unit = torch.eye(shape[1], dtype=self.dtype, device=self.device)
        return torch.cat([method.apply(layer, row.unsqueeze(0)) for row in unit]).T.contiguous()

    def _weight(self, shape: tuple[int, int]) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        return torch.randn(shape, generator=generator).to(self.device, self.dtype)

    def _inputs(self, num_rows: int, size: int) -> Tensor:
        generator = torch.Generator().manual_seed(num_rows)
        return torch.randn(num_rows, size, generator=generator).to(self.device, self.dtype)

    def _check_close(self, found: Tensor, expected: Tensor, what: str) -> None:
        error = (found.double() - expected).abs().max() / expected.abs().max()
        assert error <= self.product_tolerance, (
            f"{what} is off by {error:.6f} of the largest output; product_tolerance is "
            f"{self.product_tolerance}"
        )
