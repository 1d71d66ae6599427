"""Test cases derived from the declared capabilities of an attention backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.attention.attention_truth import KV_DTYPES
from quire.testing.kv_backend.kv_backend_cases import KVBackendCases

HEAD_DIMS = (32, 40, 64, 80, 96, 128, 256)  # tried where a backend declares any head_dim
BLOCK_SIZES = (1, 8, 16, 64)
HEADS = ((4, 2), (4, 4), (6, 2), (8, 1))  # query heads, key/value heads
BOUND_SIZES = (1, 5, 16, 33)  # tokens in a window or an attention chunk


@dataclass(frozen=True)
class DeclaredCases(KVBackendCases[SceneSizes]):
    """Test cases of one backend.

    Attributes:
        fuses_rotary: Whether the backend applies the rotary embedding itself.
    """

    fuses_rotary: bool
    kv_dtypes: ClassVar[Sequence[str]] = KV_DTYPES

    def by_argument(self) -> dict[str, Sequence[object]]:
        """Return the cases of each parametrized argument of the tests."""
        declared = self.declared
        return super().by_argument() | {
            "window": BOUND_SIZES if declared.sliding_window else (),
            "chunk_size": BOUND_SIZES if declared.attention_chunk else (),
            "soft_cap": (2.0, 30.0) if declared.logit_soft_cap else (),
            "bounds": list(self.bounds()),
            "sinks": list(self.sinks()),
            "alibi": list(self.alibi()),
            "rotary": list(self.rotary()),
            "scaled_dtype": sorted({"float8_e4m3fn"} & declared.kv_dtypes),
            "invariant": list(self.invariant()),
        }

    def sizes(self) -> Iterator[SceneSizes]:
        """Return every head_dim with every block size, cycling through the ratios of heads."""
        declared = self.declared
        head_dims = sorted(declared.head_dims or HEAD_DIMS, key=lambda d: (d != 64, d))
        block_sizes = sorted(declared.block_sizes or BLOCK_SIZES, key=lambda s: (s != 16, s))
        dtype, kv_dtype = next(iter(self.types()))
        plain = SceneSizes(dtype=dtype, kv_dtype=kv_dtype, device=self.device)
        for row, block_size in enumerate(block_sizes):
            for column, head_dim in enumerate(head_dims):
                num_heads, num_kv_heads = HEADS[(row + column) % len(HEADS)]
                yield replace(
                    plain,
                    num_heads=num_heads,
                    num_kv_heads=num_kv_heads,
                    head_dim=head_dim,
                    block_size=block_size,
                )

    def bounds(self) -> Iterator[SceneSizes]:
        """Return every sliding window and attention chunk, and neither."""
        yield self.plain
        for tokens in BOUND_SIZES:
            if self.declared.sliding_window:
                yield replace(self.plain, window=tokens)
            if self.declared.attention_chunk:
                yield replace(self.plain, chunk=tokens)

    def sinks(self) -> Iterator[SceneSizes]:
        """Return sinks alone, and with each feature that changes the scores."""
        declared, plain = self.declared, replace(self.plain, has_sinks=True)
        if not declared.sinks:
            return
        yield plain
        if declared.sliding_window:
            yield replace(plain, window=5)
        if declared.logit_soft_cap:
            yield replace(plain, soft_cap=2.0)
        if declared.batch_invariant:
            yield replace(plain, batch_invariant=True)

    def alibi(self) -> Iterator[SceneSizes]:
        """Return linear biases alone, and with each feature that changes the scores."""
        declared, plain = self.declared, replace(self.plain, has_alibi=True)
        if not declared.alibi:
            return
        yield plain
        yield replace(plain, num_heads=4, num_kv_heads=4)
        for dtype, kv_dtype in self.types():
            yield plain.with_types(dtype, kv_dtype)
        if declared.sliding_window:
            yield replace(plain, window=33)
        if declared.logit_soft_cap:
            yield replace(plain, soft_cap=2.0)
        if declared.sinks:
            yield replace(plain, has_sinks=True)
        if declared.batch_invariant:
            yield replace(plain, batch_invariant=True)

    def rotary(self) -> Iterator[SceneSizes]:
        """Return rotary embeddings with and without a norm, and with every KV-cache dtype."""
        if not self.fuses_rotary:
            return
        for kind in ("plain", "normed"):
            for head_dim in sorted({64, 80, 128} & (self.declared.head_dims or {64, 80, 128})):
                yield replace(self.plain, rotary=kind, head_dim=head_dim)
        for dtype, kv_dtype in self.types():
            yield replace(self.plain, rotary="normed", dtype=dtype, kv_dtype=kv_dtype)

    def captured(self) -> Iterator[SceneSizes]:
        """Return one case for each feature that changes how the device computes a step."""
        declared, plain = self.declared, self.plain
        if declared.graphs == "none":
            return
        yield plain
        yield replace(plain, num_heads=8, num_kv_heads=1)
        for kv_dtype in ("float8_e4m3fn", "int8"):
            if kv_dtype in declared.kv_dtypes:
                yield replace(plain, kv_dtype=kv_dtype)
        if declared.sliding_window:
            yield replace(plain, window=33)
        if declared.attention_chunk:
            yield replace(plain, chunk=33)
        if declared.batch_invariant:
            yield replace(plain, batch_invariant=True)
        if declared.alibi:
            yield replace(plain, has_alibi=True)
        if self.fuses_rotary:
            yield replace(plain, rotary="normed")

    def invariant(self) -> Iterator[SceneSizes]:
        """Return every feature that can be combined with batch invariance."""
        declared = self.declared
        if not declared.batch_invariant:
            return
        plain = replace(self.plain, batch_invariant=True)
        for dtype, kv_dtype in self.types():
            if kv_dtype in (dtype, "float8_e4m3fn", "int8"):
                yield replace(plain, dtype=dtype, kv_dtype=kv_dtype)
        for num_heads, num_kv_heads in HEADS[1:]:
            yield replace(plain, num_heads=num_heads, num_kv_heads=num_kv_heads)
        if declared.sliding_window:
            yield replace(plain, window=33)
        if declared.attention_chunk:
            yield replace(plain, chunk=100)
        if declared.logit_soft_cap:
            yield replace(plain, soft_cap=2.0)
        if declared.sinks:
            yield replace(plain, has_sinks=True)
        if declared.alibi:
            yield replace(plain, has_alibi=True)
