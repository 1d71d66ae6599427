"""What every KV-cache spec must do: its sums come out right at every length.

Write a test class for your spec, and pytest does the rest:

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
        spec_class: The spec.
        layer: A layer that it describes, with the parameters that it needs.
        block_sizes: Tokens a block in these tests.
        kv_dtypes: Element types that it allows.
        tp_sizes: Numbers of devices that can share the layer.
        has_prefix_hits: Whether equal beginnings are ever found; if not, `cached_prefix` is 0.
        other_layers: Layers of the same spec whose parameters let them use blocks otherwise.
    """

    spec_class: ClassVar[type[KVCacheSpec]]
    layer: ClassVar[KVLayer]
    block_sizes: ClassVar[tuple[int, ...]] = (1, 4, 16, 64)
    kv_dtypes: ClassVar[tuple[str, ...]] = tuple(DTYPE_BYTES)
    tp_sizes: ClassVar[tuple[int, ...]] = (1, 2, 4)
    has_prefix_hits: ClassVar[bool] = True
    other_layers: ClassVar[tuple[KVLayer, ...]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give tests that take a `spec` one for each block size."""
        if "spec" in metafunc.fixturenames:
            specs = [self._spec(block_size=size) for size in self.block_sizes]
            metafunc.parametrize("spec", specs, ids=[f"S{size}" for size in self.block_sizes])

    def test_a_page_has_bytes_and_no_part_of_a_row(self) -> None:
        """For every type, block size and number of devices."""
        for spec in self._every_spec():
            assert spec.page_bytes > 0, f"{_name(spec)}: a page has {spec.page_bytes} bytes"
            assert spec.page_bytes % spec.row_bytes == 0, (
                f"{_name(spec)}: {spec.page_bytes} bytes are no whole rows of {spec.row_bytes}"
            )

    def test_pages_do_not_shrink_with_what_they_hold(self) -> None:
        """A wider type or a longer block never takes fewer bytes."""
        by_width = sorted(self.kv_dtypes, key=lambda n: (DTYPE_BYTES[n], SCALE_BYTES.get(n, 0)))
        of_types = [self._spec(kv_dtype=name).page_bytes for name in by_width]
        _check_rising(of_types, "page_bytes falls with wider types")
        sizes = sorted(self.block_sizes)
        of_sizes = [self._spec(block_size=size).page_bytes for size in sizes]
        _check_rising(of_sizes, "page_bytes falls with longer blocks")

    def test_devices_share_the_bytes_and_lose_none(self) -> None:
        """The pages of all devices together hold at least what one device would."""
        whole = self._spec().page_bytes
        for tp_size in self.tp_sizes:
            share = self._spec(tp_size=tp_size).page_bytes
            assert share <= whole, f"tp_size {tp_size} needs larger pages"
            assert share * tp_size >= whole, f"tp_size {tp_size} lost bytes"

    def test_layers_that_use_blocks_alike_share_a_group(self) -> None:
        """The key ignores the name and what a page holds."""
        layer = self.layer
        twin = replace(layer, name="another")
        wider = replace(twin, head_dim=layer.head_dim * 2)
        keys = [self.spec_class(each, 16, self.kv_dtypes[0]).key for each in (layer, twin, wider)]
        assert keys[0] == keys[1] == keys[2], f"layers that use blocks alike have keys {keys}"
        assert _is_hashable(keys[0]), f"the key {keys[0]} cannot be hashed"

    def test_layers_that_use_blocks_otherwise_have_groups_of_their_own(self) -> None:
        """The key sees the block size, the class, and what the layer's parameters change."""
        key = self._spec().key
        assert key != self._spec(block_size=32).key, "the key does not see the block size"
        full = WholeContext(self.layer, 16, self.kv_dtypes[0])
        assert key != full.key, "the key is that of another spec's layers: it does not see the type"
        for other in self.other_layers:
            same = self.spec_class(other, 16, self.kv_dtypes[0]).key == key
            assert not same, f"the key does not see how {other.params} differ from the layer's"

    def test_other_blocks_are_the_only_change_of_other_blocks(self) -> None:
        """The plan of a model with several specs makes their blocks equally long."""
        for spec in self._every_spec():
            size, longer = spec.block_size, spec.with_block_size(2 * spec.block_size)
            fresh = self._spec(block_size=2 * size, kv_dtype=spec.kv_dtype, tp_size=spec.tp_size)
            assert type(longer) is type(spec), f"with_block_size returned a {type(longer).__name__}"
            assert longer.key == fresh.key, (
                f"{_name(spec)}: with_block_size({2 * size}) has the key {longer.key}"
            )
            assert longer.page_bytes == fresh.page_bytes, (
                f"{_name(spec)}: with_block_size({2 * size}) lost the type or the devices"
            )
            assert longer.page_bytes in (spec.page_bytes, 2 * spec.page_bytes), (
                f"{_name(spec)}: a page is a state, or so many bytes a token, so twice the tokens "
                f"take {spec.page_bytes} or twice as many bytes, not {longer.page_bytes}"
            )
            assert longer.with_block_size(size).key == spec.key, (
                f"{_name(spec)}: with_block_size back to {size} is another spec"
            )

    def test_without_prefix_hits_it_holds_no_more(self, spec: KVCacheSpec) -> None:
        """As no hit is looked for, no block is kept to be found; the plan is still kept."""
        bare = spec.without_prefix_hits()
        assert bare.page_bytes == spec.page_bytes, "without prefix hits a page has other bytes"
        for length in LENGTHS:
            assert bare.max_blocks_held(length, 16) <= spec.max_blocks_held(length, 16), (
                f"without prefix hits more blocks are held by {length} tokens"
            )
        for chunk in CHUNKS:
            _check_plan(bare, chunk)

    def test_more_tokens_never_need_fewer_blocks(self, spec: KVCacheSpec) -> None:
        """Nor does more lookahead; tables are only appended to."""
        by_length = [spec.blocks_needed(length) for length in LENGTHS]
        _check_rising(by_length, "blocks_needed falls with more tokens")
        for length in LENGTHS:
            ahead = [spec.blocks_needed(length, extra) for extra in (0, 1, 5)]
            _check_rising(ahead, f"blocks_needed falls with more lookahead after {length} tokens")
            assert ahead[0] >= 0, f"{length} tokens need {ahead[0]} blocks"

    def test_what_is_freeable_exists_and_stays_freeable(self, spec: KVCacheSpec) -> None:
        """No block is given up that was never held or is still written to, and none comes back."""
        before: set[int] = set()
        for length in LENGTHS:
            freeable = set(spec.freeable_blocks(length))
            missing = freeable - set(range(spec.blocks_needed(length)))
            assert not missing, f"after {length} tokens the table has no blocks {missing} to free"
            assert before <= freeable, f"after {length} tokens blocks {before - freeable} came back"
            assert length // spec.block_size not in freeable, (
                f"after {length} tokens block {length // spec.block_size} is given up, and the "
                "next token is written to it"
            )
            before = freeable

    def test_only_blocks_of_the_table_are_kept_for_hits(self, spec: KVCacheSpec) -> None:
        """Those that have become full, and no other."""
        for length in LENGTHS:
            fresh = range(length // 2 // spec.block_size, length // spec.block_size)
            kept = set(spec.cacheable_blocks(fresh, length))
            assert kept <= set(fresh), f"of the fresh blocks {fresh} it keeps {kept}"
            assert kept <= set(range(spec.blocks_needed(length))), (
                f"after {length} tokens it keeps {kept}, beyond the table"
            )
            assert self.has_prefix_hits or not kept, f"it keeps {kept}, and nothing is ever found"

    def test_an_equal_beginning_is_found_if_ever(self, spec: KVCacheSpec) -> None:
        """What a request leaves in the cache is enough for a hit, where there are any."""
        num_full = LENGTHS[-1] // spec.block_size
        kept = set(spec.cacheable_blocks(range(num_full), LENGTHS[-1]))
        hit = spec.cached_prefix([index in kept for index in range(num_full)])
        assert bool(hit) == self.has_prefix_hits, (
            f"of {num_full} equal blocks {hit} are found; has_prefix_hits is {self.has_prefix_hits}"
        )

    def test_a_longer_request_never_holds_less(self, spec: KVCacheSpec) -> None:
        """Nor do longer steps; the longest request that fits is found by bisection."""
        for chunk in CHUNKS:
            held = [spec.max_blocks_held(length, chunk) for length in LENGTHS]
            _check_rising(held, f"max_blocks_held falls with more tokens in steps of {chunk}")
        by_step = [spec.max_blocks_held(LENGTHS[-1], chunk) for chunk in CHUNKS]
        _check_rising(by_step, "max_blocks_held falls with longer steps")

    @pytest.mark.parametrize("chunk", CHUNKS)
    def test_no_request_holds_more_than_was_planned(self, spec: KVCacheSpec, chunk: int) -> None:
        """Run through a request in chunks and count: held is needed less freed."""
        _check_plan(spec, chunk)

    def test_a_prefix_hit_is_the_longest_that_can_go_on(self, spec: KVCacheSpec) -> None:
        """All that the next token will read is cached, and no longer hit has that."""
        for is_cached in _masks(6):
            usable = [0]
            if self.has_prefix_hits:
                usable += [length for length in range(1, 7) if _can_go_on(spec, is_cached[:length])]
            hit = spec.cached_prefix(is_cached)
            assert hit == usable[-1], f"of {is_cached} cached_prefix finds {hit}, not {usable[-1]}"
        assert spec.cached_prefix([]) == 0, "cached_prefix finds something where nothing is"

    def test_a_hit_that_ends_at_the_first_gap_says_so(self, spec: KVCacheSpec) -> None:
        """`needs_whole_prefix` lets the engine stop looking there."""
        for is_cached in _masks(6):
            gap = [*is_cached, False].index(False)
            hit = spec.cached_prefix(is_cached)
            assert hit == gap or not spec.needs_whole_prefix, (
                f"of {is_cached} cached_prefix finds {hit}, and needs_whole_prefix says {gap}"
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
    """Compute a request in chunks; it never holds more blocks than were planned."""
    length, computed = LENGTHS[-1], 0
    planned = spec.max_blocks_held(length, chunk)
    while computed < length:
        step_end = min(length, computed + chunk)
        held = spec.blocks_needed(step_end) - len(spec.freeable_blocks(computed))
        assert held <= planned, (
            f"in steps of {chunk}, {held} blocks are held at {step_end} tokens, planned {planned}"
        )
        computed = step_end


def _is_hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def _masks(num_blocks: int) -> Iterator[list[bool]]:
    """Return every way in which some of the blocks are cached."""
    for mask in range(2**num_blocks):
        yield [bool(mask >> index & 1) for index in range(num_blocks)]


def _can_go_on(spec: KVCacheSpec, is_cached: list[bool]) -> bool:
    """Whether a hit of all these blocks has what later tokens read."""
    unread = spec.freeable_blocks(len(is_cached) * spec.block_size)
    return all(hit or index in unread for index, hit in enumerate(is_cached))


def _name(spec: KVCacheSpec) -> str:
    return f"block size {spec.block_size}, {spec.kv_dtype}, {spec.tp_size} device(s)"
