"""Test cases derived from the declared capabilities of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from quire.interfaces.attention import AttentionCapabilities
from quire.testing.kv_backend.pool_sizes import DTYPES, PoolSizes

Sizes = TypeVar("Sizes", bound=PoolSizes)


@dataclass(frozen=True)
class KVBackendCases(ABC, Generic[Sizes]):
    """Test cases of one backend that all kits have.

    Attributes:
        declared: Capabilities that the backend is registered with.
        device: Device of the tests.
    """

    declared: AttentionCapabilities
    device: str
    kv_dtypes: ClassVar[Sequence[str]] = tuple(DTYPES)  # that the kit covers

    @cached_property
    def plain(self) -> Sizes:
        """One set of sizes that the backend declares."""
        return next(iter(self.sizes()))

    def by_argument(self) -> dict[str, Sequence[object]]:
        """Return the cases of each parametrized argument of the tests."""
        return {
            "sizes": list(self.sizes()),
            "types": list(self.types()),
            "page_padding": (1, 7, 64) if self.declared.padded_pages else (),
            "captured": list(self.captured()),
            "captured_whole": list(self.captured_whole()),
        }

    @abstractmethod
    def sizes(self) -> Iterator[Sizes]:
        """Return all sizes to try, the plainest first."""

    def types(self) -> Iterator[tuple[str, str]]:
        """Return every dtype with every KV-cache dtype, equal ones first."""
        for dtype in DTYPES:
            for kv_dtype in sorted(self.kv_dtypes, key=lambda name: name != dtype):
                declared = self.declared
                if dtype in declared.dtypes and kv_dtype in declared.kv_dtypes:
                    yield dtype, kv_dtype

    def captured(self) -> Iterator[Sizes]:
        """Return one case for each feature that changes how the device computes a step."""
        if self.declared.graphs != "none":
            yield self.plain

    def captured_whole(self) -> Iterator[Sizes]:
        """Return the same cases if the backend captures steps with any tokens per request."""
        return self.captured() if self.declared.graphs == "full" else iter(())


def case_name(case: object) -> str:
    """Return the name of a case in a test id."""
    return "-".join(case) if isinstance(case, tuple) else str(case)
