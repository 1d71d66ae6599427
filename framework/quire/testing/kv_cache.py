"""Contract of KV-cache specs: their numbers are consistent at every length.

Write a test class for your spec; pytest collects the inherited tests:

    class TestMine(KVCacheSpecContract):
        spec_class = MySpec
        layer = KVLayer("layers.0.attn", "mine", num_kv_heads=8, head_dim=64)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from quire.interfaces.kv_cache import DTYPE_BYTES, SCALE_BYTES, KVCacheSpec, KVLayer
from quire.testing.whole_context import WholeContext

LENGTHS = range(200)
CHUNKS = (1, 7, 16, 64, 200)


class KVCacheSpecContract:
    """Tests that a KV-cache spec must pass.

    Attributes:
        spec_class: Spec under test.
        layer: Layer of this spec, with the parameters that the spec needs.
        block_sizes: Block sizes to test, in tokens.
        kv_dtypes: KV-cache dtypes that the spec supports.
        tp_sizes: Tensor-parallel sizes that the layer supports.
        has_prefix_hits: Whether equal prefixes can be found; if not, `cached_prefix` is always 0.
        other_layers: Layers of the same spec with parameters that change their use of blocks.
    """

    spec_class: ClassVar[type[KVCacheSpec]]
    layer: ClassVar[KVLayer]
    block_sizes: ClassVar[tuple[int, ...]] = (1, 4, 16, 64)
    kv_dtypes: ClassVar[tuple[str, ...]] = tuple(DTYPE_BYTES)
    tp_sizes: ClassVar[tuple[int, ...]] = (1, 2, 4)
    has_prefix_hits: ClassVar[bool] = True
    other_layers: ClassVar[tuple[KVLayer, ...]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests that take `spec` with one for each block size."""
        if "spec" in metafunc.fixturenames:
            specs = [self._spec(block_size=size) for size in self.block_sizes]
            metafunc.parametrize("spec", specs, ids=[f"S{size}" for size in self.block_sizes])

    def test_a_page_is_a_whole_number_of_rows(self) -> None:
        """Check `page_bytes` for every KV-cache dtype, block size and tensor-parallel size."""
        for spec in self._every_spec():
            assert spec.page_bytes > 0, (
                f"{_name(spec)}: page_bytes must be positive, got {spec.page_bytes}"
            )
            assert spec.page_bytes % spec.row_bytes == 0, (
                f"{_name(spec)}: page_bytes must be a multiple of row_bytes {spec.row_bytes}, "
                f"got {spec.page_bytes}"
            )

    def test_pages_do_not_shrink_with_what_they_hold(self) -> None:
        """A wider dtype or a longer block never takes fewer bytes."""
        by_width = sorted(self.kv_dtypes, key=lambda n: (DTYPE_BYTES[n], SCALE_BYTES.get(n, 0)))
        of_types = [self._spec(kv_dtype=name).page_bytes for name in by_width]
        _check_rising(of_types, "page_bytes falls with wider dtypes")
        sizes = sorted(self.block_sizes)
        of_sizes = [self._spec(block_size=size).page_bytes for size in sizes]
        _check_rising(of_sizes, "page_bytes falls with longer blocks")

    def test_the_shards_of_a_page_hold_all_of_its_bytes(self) -> None:
        """The page of a shard is no larger than the whole page, and all shards hold all of it."""
        whole = self._spec().page_bytes
        for tp_size in self.tp_sizes:
            shard = self._spec(tp_size=tp_size).page_bytes
            assert shard <= whole, (
                f"with tp_size {tp_size} a page has {shard} bytes, more than {whole} with tp_size 1"
            )
            assert shard * tp_size >= whole, (
                f"{tp_size} shards of {shard} bytes are less than the whole page of {whole} bytes"
            )

    def test_layers_that_use_blocks_alike_share_a_group(self) -> None:
        """The key does not depend on the layer name or the content of a page."""
        layer = self.layer
        twin = replace(layer, name="another")
        wider = replace(twin, head_dim=layer.head_dim * 2)
        keys = [self.spec_class(each, 16, self.kv_dtypes[0]).key for each in (layer, twin, wider)]
        assert keys[0] == keys[1] == keys[2], (
            f"layers that use blocks alike must have equal keys, got {keys}"
        )
        assert _is_hashable(keys[0]), f"the key must be hashable, got {keys[0]}"

    def test_layers_that_use_blocks_differently_have_their_own_groups(self) -> None:
        """The key depends on block size, spec class, and parameters that change block use."""
        key = self._spec().key
        assert key != self._spec(block_size=32).key, "the key must depend on the block size"
        full = WholeContext(self.layer, 16, self.kv_dtypes[0])
        assert key != full.key, "the key must depend on the spec class: it equals another's"
        for other in self.other_layers:
            same = self.spec_class(other, 16, self.kv_dtypes[0]).key == key
            assert not same, (
                f"the key must depend on the parameters: it is the same for {other.params}"
            )

    def test_with_block_size_changes_the_block_size_only(self) -> None:
        """The KV plan of a model with several specs gives them a common block size."""
        for spec in self._every_spec():
            size, longer = spec.block_size, spec.with_block_size(2 * spec.block_size)
            fresh = self._spec(block_size=2 * size, kv_dtype=spec.kv_dtype, tp_size=spec.tp_size)
            assert type(longer) is type(spec), (
                f"with_block_size must return a {type(spec).__name__}, "
                f"got a {type(longer).__name__}"
            )
            assert longer.key == fresh.key, (
                f"{_name(spec)}: with_block_size({2 * size}) must have the key {fresh.key}, "
                f"got {longer.key}"
            )
            assert longer.page_bytes == fresh.page_bytes, (
                f"{_name(spec)}: with_block_size({2 * size}) must have page_bytes "
                f"{fresh.page_bytes}, got {longer.page_bytes}: keep kv_dtype and tp_size"
            )
            assert longer.page_bytes in (spec.page_bytes, 2 * spec.page_bytes), (
                f"{_name(spec)}: twice the tokens per block must take {spec.page_bytes} bytes (a "
                f"state) or twice as many (bytes per token), got {longer.page_bytes}"
            )
            assert longer.with_block_size(size).key == spec.key, (
                f"{_name(spec)}: with_block_size({2 * size}) and back to {size} gives another key"
            )

    def test_without_prefix_hits_it_holds_no_more(self, spec: KVCacheSpec) -> None:
        """Without prefix-cache lookups no block is kept for them, and the plan still holds."""
        bare = spec.without_prefix_hits()
        assert bare.page_bytes == spec.page_bytes, (
            f"without_prefix_hits must keep page_bytes {spec.page_bytes}, got {bare.page_bytes}"
        )
        for length in LENGTHS:
            assert bare.max_blocks_held(length, 16) <= spec.max_blocks_held(length, 16), (
                f"without_prefix_hits must not raise max_blocks_held, but did for {length} tokens"
            )
        for chunk in CHUNKS:
            _check_plan(bare, chunk)

    def test_more_tokens_never_need_fewer_blocks(self, spec: KVCacheSpec) -> None:
        """Neither does more lookahead: block tables only grow."""
        by_length = [spec.blocks_needed(length) for length in LENGTHS]
        _check_rising(by_length, "blocks_needed falls with more tokens")
        for length in LENGTHS:
            with_lookahead = [spec.blocks_needed(length, extra) for extra in (0, 1, 5)]
            _check_rising(
                with_lookahead, f"blocks_needed falls with more lookahead after {length} tokens"
            )
            assert with_lookahead[0] >= 0, (
                f"blocks_needed({length}) must not be negative, got {with_lookahead[0]}"
            )

    def test_what_is_freeable_exists_and_stays_freeable(self, spec: KVCacheSpec) -> None:
        """Only blocks of the table are freed, not the one being written, and they stay freeable."""
        before: set[int] = set()
        for length in LENGTHS:
            freeable = set(spec.freeable_blocks(length))
            missing = freeable - set(range(spec.blocks_needed(length)))
            assert not missing, (
                f"after {length} tokens blocks {missing} are freeable, but not in the table"
            )
            assert before <= freeable, (
                f"after {length} tokens blocks {before - freeable} are no longer freeable"
            )
            assert length // spec.block_size not in freeable, (
                f"after {length} tokens block {length // spec.block_size} is freeable, but the "
                "next token is written to it"
            )
            before = freeable

    def test_only_blocks_of_the_table_are_kept_for_hits(self, spec: KVCacheSpec) -> None:
        """Only full blocks of the table are cacheable."""
        for length in LENGTHS:
            fresh = range(length // 2 // spec.block_size, length // spec.block_size)
            kept = set(spec.cacheable_blocks(fresh, length))
            assert kept <= set(fresh), f"cacheable_blocks({fresh}) returned {kept}, not a subset"
            assert kept <= set(range(spec.blocks_needed(length))), (
                f"after {length} tokens cacheable_blocks returned {kept}, beyond the table"
            )
            assert self.has_prefix_hits or not kept, (
                f"has_prefix_hits is false, but cacheable_blocks returned {kept}"
            )

    def test_an_equal_prefix_is_found(self, spec: KVCacheSpec) -> None:
        """The cacheable blocks of a request are sufficient for a prefix cache hit."""
        num_full = LENGTHS[-1] // spec.block_size
        kept = set(spec.cacheable_blocks(range(num_full), LENGTHS[-1]))
        hit = spec.cached_prefix([index in kept for index in range(num_full)])
        assert bool(hit) == self.has_prefix_hits, (
            f"cached_prefix found {hit} of {num_full} equal blocks; has_prefix_hits is "
            f"{self.has_prefix_hits}"
        )

    def test_a_longer_request_never_holds_less(self, spec: KVCacheSpec) -> None:
        """Neither do longer steps: the longest request that fits is found by bisection."""
        for chunk in CHUNKS:
            held = [spec.max_blocks_held(length, chunk) for length in LENGTHS]
            _check_rising(held, f"max_blocks_held falls with more tokens in steps of {chunk}")
        by_step = [spec.max_blocks_held(LENGTHS[-1], chunk) for chunk in CHUNKS]
        _check_rising(by_step, "max_blocks_held falls with longer steps")

    @pytest.mark.parametrize("chunk", CHUNKS)
    def test_no_request_holds_more_than_was_planned(self, spec: KVCacheSpec, chunk: int) -> None:
        """Compute a request in chunks; held blocks are needed blocks less freeable ones."""
        _check_plan(spec, chunk)

    def test_a_prefix_hit_is_the_longest_usable_one(self, spec: KVCacheSpec) -> None:
        """A hit has all blocks that the next token reads, and no longer hit has them."""
        for is_cached in _masks(6):
            usable = [0]
            if self.has_prefix_hits:
                usable += [length for length in range(1, 7) if _is_usable(spec, is_cached[:length])]
            hit = spec.cached_prefix(is_cached)
            assert hit == usable[-1], f"cached_prefix({is_cached}) must be {usable[-1]}, got {hit}"
        assert spec.cached_prefix([]) == 0, "cached_prefix([]) must be 0"

    def test_needs_whole_prefix_matches_the_hits(self, spec: KVCacheSpec) -> None:
        """With `needs_whole_prefix` the engine stops its lookup at the first gap."""
        for is_cached in _masks(6):
            gap = [*is_cached, False].index(False)
            hit = spec.cached_prefix(is_cached)
            assert hit == gap or not spec.needs_whole_prefix, (
                f"cached_prefix({is_cached}) is {hit}, but needs_whole_prefix requires {gap}"
            )

    def _spec(
        self, *, block_size: int = 16, kv_dtype: str | None = None, tp_size: int = 1
    ) -> KVCacheSpec:
        return self.spec_class(self.layer, block_size, kv_dtype or self.kv_dtypes[0], tp_size)

    def _every_spec(self) -> Iterator[KVCacheSpec]:
        for block_size in self.block_sizes:
            for kv_dtype in self.kv_dtypes:
                for tp_size in self.tp_sizes:
                    yield self._spec(block_size=block_size, kv_dtype=kv_dtype, tp_size=tp_size)


def _check_rising(values: list[int], what: str) -> None:
    assert values == sorted(values), f"{what}: {values}"


def _check_plan(spec: KVCacheSpec, chunk: int) -> None:
    """Compute a request in chunks; check that it never holds more than `max_blocks_held`."""
    length, computed = LENGTHS[-1], 0
    planned = spec.max_blocks_held(length, chunk)
    while computed < length:
        step_end = min(length, computed + chunk)
        held = spec.blocks_needed(step_end) - len(spec.freeable_blocks(computed))
        assert held <= planned, (
            f"in steps of {chunk} tokens, {held} blocks are held at {step_end} tokens, but "
            f"max_blocks_held is {planned}"
        )
        computed = step_end


def _is_hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _masks(num_blocks: int) -> Iterator[list[bool]]:
    """Yield every combination of cached and uncached blocks."""
    for mask in range(2**num_blocks):
        yield [bool(mask >> index & 1) for index in range(num_blocks)]


def _is_usable(spec: KVCacheSpec, is_cached: list[bool]) -> bool:
    """Return whether a hit of these blocks has all blocks that later tokens read."""
    unread = spec.freeable_blocks(len(is_cached) * spec.block_size)
    return all(hit or index in unread for index, hit in enumerate(is_cached))


def _name(spec: KVCacheSpec) -> str:
    return f"block size {spec.block_size}, {spec.kv_dtype}, tp_size {spec.tp_size}"
