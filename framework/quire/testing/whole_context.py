"""The plainest KV-cache spec: every token stays. For tests that need blocks and no attention."""

from collections.abc import Sequence

from quire.interfaces.kv_cache import KVCacheSpec


class WholeContext(KVCacheSpec):
    """A layer that reads all of its context: full attention, as far as the engine can tell."""

    needs_whole_prefix = True

    @property
    def page_bytes(self) -> int:
        """K and V of all heads, as full attention keeps them."""
        return 2 * self.block_size * self.row_bytes

    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """As many as the tokens fill."""
        return -(-(num_tokens + num_lookahead_tokens) // self.block_size)

    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """All of them."""
        del max_step_tokens
        return self.blocks_needed(num_tokens)

    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """None."""
        del num_computed_tokens
        return range(0)

    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Up to the first gap."""
        return [*is_cached, False].index(False)
