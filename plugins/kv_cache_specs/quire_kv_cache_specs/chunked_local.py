"""Spec of chunked local attention: a query sees its own chunk only.

A query at position p sees the positions from the start of its chunk, `p // chunk * chunk`, to p:

    chunk 4, blocks of 2, next query at 6      0 1 | 2 3 | 4 5 | (6)
                                               freeable  | seen: 4 5 6
"""

from collections.abc import Sequence

from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.kv_pages import KVPagesSpec
from quire_kv_cache_specs.sizes import size_param


class ChunkedLocalAttentionSpec(KVPagesSpec):
    """K and V of one chunk at a time; the layer's parameter `chunk` is its length in tokens.

    Raises:
        SettingsError: `chunk` is missing or not positive; otherwise as for `KVPagesSpec`.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        super().__init__(layer, block_size, kv_dtype, tp_size)
        self.chunk = size_param(layer, "chunk")

    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the number of blocks of a step and of the chunk that its first token sees."""
        return min(
            self.blocks_of(num_tokens), self.max_blocks_under(self.chunk - 1 + max_step_tokens)
        )

    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return the blocks before the chunk of the next token."""
        return range(self._first_seen(num_computed_tokens) // self.block_size)

    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return the longest hit that has the chunk of the next token, as far as it is computed.

        If the next token is the first of a chunk, no block needs to be cached.
        """
        run = length = 0  # cached blocks in a row; length of the longest hit so far
        for index, hit in enumerate(is_cached, start=1):
            run = run + 1 if hit else 0
            num_seen = index - self._first_seen(index * self.block_size) // self.block_size
            if run >= num_seen:
                length = index
        return length

    def _first_seen(self, position: int) -> int:
        return position // self.chunk * self.chunk
