"""Base class of the attention kit: parametrization by capabilities, scenes and comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import ClassVar

import pytest
from torch import Tensor

from quire.interfaces.attention import AttentionBackend, AttentionCapabilities, AttentionQuery
from quire.testing.attention.attention_cases import BOUND_SIZES, DeclaredCases, case_name, tolerance
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes


class AttentionChecks:
    """Base class of each part of the contract.

    Attributes:
        backend_class: Backend under test.
        capabilities: Capabilities that the backend is registered with.
        device: Device of the tests; the backend must declare it.
        num_cases: Largest number of cases of each kind, chosen evenly; None for all. Set it in a
            suite that runs all cases elsewhere, because they take long.
    """

    backend_class: ClassVar[type[AttentionBackend]]
    capabilities: ClassVar[AttentionCapabilities]
    device: ClassVar[str] = "cpu"
    num_cases: ClassVar[int | None] = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize each test with the cases that the backend declares."""
        found = self._cases()
        cases: dict[str, Sequence[object]] = {
            "sizes": list(found.sizes()),
            "types": list(found.types()),
            "window": BOUND_SIZES if self.capabilities.sliding_window else (),
            "chunk_size": BOUND_SIZES if self.capabilities.attention_chunk else (),
            "soft_cap": (2.0, 30.0) if self.capabilities.logit_soft_cap else (),
            "bounds": list(found.bounds()),
            "sinks": list(found.sinks()),
            "rotary": list(found.rotary()),
            "page_padding": (1, 7, 64) if self.capabilities.padded_pages else (),
            "scaled_dtype": sorted({"float8_e4m3fn"} & self.capabilities.kv_dtypes),
            "captured": list(found.captured()),
            "captured_whole": list(found.captured_whole()),
            "invariant": list(found.invariant()),
        }
        for name in set(cases) & set(metafunc.fixturenames):
            metafunc.parametrize(name, self._chosen(cases[name]), ids=case_name)

    def tolerance(self, sizes: SceneSizes) -> float:
        """Return the largest absolute error allowed; a test class may override it."""
        return tolerance(sizes)

    def _chosen(self, cases: Sequence[object]) -> Sequence[object]:
        if self.num_cases is None:
            return cases
        return cases[:: max(1, -(-len(cases) // self.num_cases))]

    def _cases(self) -> DeclaredCases:
        return DeclaredCases(self.capabilities, self.device, self.backend_class.fuses_rotary)

    def _plain(self) -> SceneSizes:
        """Return one set of sizes that the backend declares."""
        return self._cases().plain

    def _scene(self, sizes: SceneSizes) -> AttentionScene:
        """Build a scene, after a check that the declared capabilities allow it."""
        query = AttentionQuery(
            device=sizes.device,
            dtype=sizes.dtype,
            kv_dtype=sizes.kv_dtype,
            num_heads=sizes.num_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            block_size=sizes.block_size,
            sliding_window=sizes.window,
            attention_chunk=sizes.chunk,
            logit_soft_cap=sizes.soft_cap,
            has_sinks=sizes.has_sinks,
            batch_invariant=sizes.batch_invariant,
        )
        refusal = self.capabilities.refusal(query)
        assert refusal is None, f"the kit built a case that the capabilities refuse: {refusal}"
        return AttentionScene(self.backend_class, sizes)

    def _check(self, scene: AttentionScene, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Compare the pairs that `AttentionScene.step` returned."""
        for index, (output, expected) in enumerate(pairs):
            assert_close(output, expected, self.tolerance(scene.sizes), f"row {index} of the step")


def assert_close(output: Tensor, expected: Tensor, limit: float, what: str = "the output") -> None:
    """Compare an output with the expected one, element by element."""
    assert output.shape == expected.shape, (
        f"{what} has shape {output.shape}, expected {expected.shape}"
    )
    difference = (output.double() - expected.double()).abs().max().item()
    assert difference <= limit, (
        f"{what} is off by {difference:.2e}, at most {limit:.0e} is allowed"
        + (
            ": it read memory that was never written, or that no query may see"
            if isnan(difference)
            else ""
        )
    )
