"""Test cases derived from the declared capabilities of an attention backend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from quire.interfaces.attention import AttentionCapabilities
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.attention.attention_truth import DTYPES, KV_DTYPES

HEAD_DIMS = (32, 40, 64, 80, 96, 128, 256)  # tried where a backend declares any head_dim
BLOCK_SIZES = (1, 8, 16, 64)
HEADS = ((4, 2), (4, 4), (6, 2), (8, 1))  # query heads, key/value heads
TOLERANCES = {
    "float32": 2e-5,
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float8_e4m3fn": 2e-5,  # the stored values are defined bit for bit
    "int8": 1e-4,  # as well, but a division may round differently
}
ROTARY_TOLERANCES = {  # one last bit may change a stored value; queries are rounded once more
    "bfloat16": 6e-2,
    "float8_e4m3fn": 0.1,
    "int8": 3e-2,
}
BOUND_SIZES = (1, 5, 16, 33)  # tokens in a window or an attention chunk


@dataclass(frozen=True)
class DeclaredCases:
    """Test cases of one backend.

    Attributes:
        declared: Capabilities that the backend is registered with.
        device: Device of the tests.
        fuses_rotary: Whether the backend applies the rotary embedding itself.
    """

    declared: AttentionCapabilities
    device: str
    fuses_rotary: bool

    @cached_property
    def plain(self) -> SceneSizes:
        """One set of sizes that the backend declares."""
        return next(iter(self.sizes()))

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

    def types(self) -> Iterator[tuple[str, str]]:
        """Return every dtype with every KV-cache dtype, equal ones first."""
        for dtype in DTYPES:
            for kv_dtype in sorted(KV_DTYPES, key=lambda name: name != dtype):
                declared = self.declared
                if dtype in declared.dtypes and kv_dtype in declared.kv_dtypes:
                    yield dtype, kv_dtype

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
        if self.fuses_rotary:
            yield replace(plain, rotary="normed")

    def captured_whole(self) -> Iterator[SceneSizes]:
        """Return the same cases if the backend captures steps with any tokens per request."""
        return self.captured() if self.declared.graphs == "full" else iter(())

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


def tolerance(sizes: SceneSizes) -> float:
    """Return the largest absolute error allowed for a scene of these sizes."""
    types = (sizes.dtype, sizes.kv_dtype)
    limit = max(TOLERANCES[name] for name in types)
    if sizes.rotary:
        return max(limit, *(ROTARY_TOLERANCES.get(name, 0.0) for name in types))
    return limit


def case_name(case: object) -> str:
    """Return the name of a case in a test id."""
    if not isinstance(case, SceneSizes):
        return "-".join(case) if isinstance(case, tuple) else str(case)
    special = {
        f"window{case.window}": case.window,
        f"chunk{case.chunk}": case.chunk,
        f"cap{case.soft_cap}": case.soft_cap,
        "sinks": case.has_sinks,
        f"{case.rotary}-rotary": case.rotary,
        "invariant": case.batch_invariant,
        case.kv_dtype: case.kv_dtype != case.dtype,
    }
    sizes = f"H{case.num_heads}-K{case.num_kv_heads}-D{case.head_dim}-S{case.block_size}"
    return "-".join([sizes, case.dtype, *(name for name, is_set in special.items() if is_set)])
