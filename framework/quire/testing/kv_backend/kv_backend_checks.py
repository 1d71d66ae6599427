"""Base class of the kits: parametrization by capabilities, scenes and comparisons."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isnan
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from torch import Tensor

from quire.interfaces.attention import AttentionCapabilities, KVBackend
from quire.testing.kv_backend.kv_backend_cases import KVBackendCases, case_name
from quire.testing.kv_backend.kv_backend_scene import KVBackendScene
from quire.testing.kv_backend.pool_sizes import PoolSizes

Scene = TypeVar("Scene", bound=KVBackendScene)


class KVBackendChecks(ABC, Generic[Scene]):
    """Base class of each part of a contract.

    Attributes:
        backend_class: Backend under test.
        capabilities: Capabilities that the backend is registered with.
        device: Device of the tests; the backend must declare it.
        num_cases: Largest number of cases of each kind, chosen evenly; None for all. Set it in a
            suite that runs all cases elsewhere, because they take long.
        scene_class: Scene of the kit.
    """

    backend_class: ClassVar[type[KVBackend]]
    capabilities: ClassVar[AttentionCapabilities]
    device: ClassVar[str] = "cpu"
    num_cases: ClassVar[int | None] = None
    scene_class: type[Scene]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize each test with the cases that the backend declares."""
        cases = self._cases().by_argument()
        for name in set(cases) & set(metafunc.fixturenames):
            metafunc.parametrize(name, self._chosen(cases[name]), ids=case_name)

    def tolerance(self, sizes: PoolSizes) -> float:
        """Return the largest absolute error allowed; a test class may override it."""
        return sizes.tolerance

    @abstractmethod
    def _cases(self) -> KVBackendCases[Any]:
        """Return the cases that the backend declares."""

    def _plain(self) -> PoolSizes:
        """Return one set of sizes that the backend declares."""
        plain: PoolSizes = self._cases().plain
        return plain

    def _chosen(self, cases: Sequence[object]) -> Sequence[object]:
        if self.num_cases is None:
            return cases
        return cases[:: max(1, -(-len(cases) // self.num_cases))]

    def _scene(self, sizes: PoolSizes) -> Scene:
        """Build a scene, after a check that the declared capabilities allow it."""
        refusal = self.capabilities.refusal(sizes.query)
        assert refusal is None, f"the kit built a case that the capabilities refuse: {refusal}"
        return self.scene_class(self.backend_class, sizes)

    def _check(self, scene: KVBackendScene, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Compare the pairs that a step returned."""
        for index, (output, expected) in enumerate(pairs):
            assert_close(output, expected, self.tolerance(scene.sizes), f"row {index} of the step")

    def _check_writes(
        self, scene: KVBackendScene, before: Tensor, positions: Sequence[tuple[int, int]]
    ) -> None:
        """Check that only the blocks of the written tokens, and the null block, have changed."""
        size = scene.sizes.block_size
        allowed = {scene.requests[number].block_ids[p // size] for number, p in positions} | {0}
        changed = set((before != scene.raw).any(1).nonzero().flatten().tolist())
        assert changed <= allowed, (
            f"the step wrote to blocks {sorted(changed - allowed)}, where it has no new tokens"
        )


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
