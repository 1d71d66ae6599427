"""A sliding window moves on with every token, and a block that it has left behind is free.

A query at position p sees the positions above p - window, itself included, as in transformers:

    window 4, blocks of 2, next query at 7     0 1 | 2 3 | 4 5 | 6 (7)
                                               freeable  | seen: 4 5 6 7
"""

from collections.abc import Sequence

from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.kv_pages import KVPagesSpec
from quire_kv_cache_specs.sizes import size_param


class SlidingWindowSpec(KVPagesSpec):
    """K and V of the last tokens; the layer's parameter `window` says how many a query sees.

    Raises:
        SettingsError: There is no window, or it is not positive; else as for `KVPagesSpec`.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        super().__init__(layer, block_size, kv_dtype, tp_size)
        self.window = size_param(layer, "window")

    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the blocks under a step and the window of its first token."""
        return min(
            self.blocks_of(num_tokens), self.max_blocks_under(self.window - 1 + max_step_tokens)
        )

    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return the blocks that end before the window of the next token begins."""
        first_seen = num_computed_tokens - self.window + 1
        return range(max(0, first_seen // self.block_size))

    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return the longest hit whose last blocks, as far as the window goes, are cached."""
        num_seen = self.blocks_of(self.window - 1)  # a hit ends on a block's end
        run = length = 0  # of cached blocks in a row; of the longest hit yet
        for index, hit in enumerate(is_cached, start=1):
            run = run + 1 if hit else 0
            if run >= min(num_seen, index):
                length = index
        return length
