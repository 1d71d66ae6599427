"""Minimal KV-cache spec that keeps every token, for tests that need blocks but no attention."""

from collections.abc import Sequence

from quire.interfaces.kv_cache import KVCacheSpec


class WholeContext(KVCacheSpec):
    """Spec of a layer that reads its whole context, like full attention."""

    needs_whole_prefix = True

    @property
    def page_bytes(self) -> int:
        """Bytes of K and V of all heads, as in full attention."""
        return 2 * self.block_size * self.row_bytes

    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """Return the number of blocks that the tokens fill."""
        return -(-(num_tokens + num_lookahead_tokens) // self.block_size)

    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the number of all blocks that the tokens fill."""
        del max_step_tokens
        return self.blocks_needed(num_tokens)

    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return no blocks."""
        del num_computed_tokens
        return range(0)

    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return the number of cached blocks before the first gap."""
        return [*is_cached, False].index(False)
