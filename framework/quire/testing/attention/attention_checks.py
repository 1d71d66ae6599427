"""What the parts of the attention contract share: cases as declared, scenes, comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import ClassVar

import pytest
from torch import Tensor

from quire.interfaces.attention import AttentionBackend, AttentionCapabilities, AttentionQuery
from quire.testing.attention.attention_cases import REACHES, DeclaredCases, case_name, tolerance
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes


class AttentionChecks:
    """The class that every part of the contract is built on.

    Attributes:
        backend_class: The backend.
        capabilities: What it is registered with.
        device: Where the tests run; a device that it declares.
        num_cases: Try at most so many cases of each kind, evenly chosen. For a suite that tries
            all of them elsewhere, because they take long.
    """

    backend_class: ClassVar[type[AttentionBackend]]
    capabilities: ClassVar[AttentionCapabilities]
    device: ClassVar[str] = "cpu"
    num_cases: ClassVar[int | None] = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each test the cases that the backend declares."""
        found = self._cases()
        cases: dict[str, Sequence[object]] = {
            "sizes": list(found.sizes()),
            "types": list(found.types()),
            "window": REACHES if self.capabilities.sliding_window else (),
            "chunk_size": REACHES if self.capabilities.attention_chunk else (),
            "soft_cap": (2.0, 30.0) if self.capabilities.logit_soft_cap else (),
            "reach": list(found.reaches()),
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
        """Return how far an answer may be from the truth; a test class may have its own reasons."""
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
        """Build a scene, after asking the declared capabilities whether they allow it."""
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
        assert refusal is None, f"the kit asked for what is not declared: {refusal}"
        return AttentionScene(self.backend_class, sizes)

    def _check(self, scene: AttentionScene, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Compare what `AttentionScene.step` returned."""
        for index, (answer, truth) in enumerate(pairs):
            assert_close(answer, truth, self.tolerance(scene.sizes), f"row {index} of the step")


def assert_close(answer: Tensor, truth: Tensor, limit: float, what: str = "the answer") -> None:
    """Compare an answer with the truth, number by number."""
    assert answer.shape == truth.shape, f"{what} has shape {answer.shape}, not {truth.shape}"
    difference = (answer.double() - truth.double()).abs().max().item()
    assert difference <= limit, f"{what} is off by {difference:.2e}, allowed are {limit:.0e}" + (
        ": uninitialised memory was read, or no query sees" if isnan(difference) else ""
    )
