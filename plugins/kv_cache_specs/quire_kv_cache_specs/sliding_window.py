"""Spec of sliding-window attention: blocks behind the window are freeable.

A query at position p sees the positions above p - window, itself included, as in transformers:

    window 4, blocks of 2, next query at 7     0 1 | 2 3 | 4 5 | 6 (7)
                                               freeable  | seen: 4 5 6 7
"""

from collections.abc import Sequence

from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.kv_pages import KVPagesSpec
from quire_kv_cache_specs.sizes import size_param


class SlidingWindowSpec(KVPagesSpec):
    """K and V of the last tokens; the layer's parameter `window` is the number a query sees.

    Raises:
        SettingsError: `window` is missing or not positive; otherwise as for `KVPagesSpec`.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        super().__init__(layer, block_size, kv_dtype, tp_size)
        self.window = size_param(layer, "window")

    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the number of blocks of a step and of the window of its first token."""
        return min(
            self.blocks_of(num_tokens), self.max_blocks_under(self.window - 1 + max_step_tokens)
        )

    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return the blocks before the window of the next token."""
        first_seen = num_computed_tokens - self.window + 1
        return range(max(0, first_seen // self.block_size))

    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return the longest hit whose last blocks, under the window, are all cached."""
        num_seen = self.blocks_of(self.window - 1)  # a hit ends at the end of a block
        run = length = 0  # cached blocks in a row; length of the longest hit so far
        for index, hit in enumerate(is_cached, start=1):
            run = run + 1 if hit else 0
            if run >= min(num_seen, index):
                length = index
        return length
