"""Spec of full attention: a request keeps all its blocks to its end."""

from collections.abc import Sequence

from quire_kv_cache_specs.kv_pages import KVPagesSpec


class FullAttentionSpec(KVPagesSpec):
    """K and V of every token, for layers that attend to the whole context."""

    needs_whole_prefix = True

    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the number of blocks of all tokens: none is freed before the end."""
        del max_step_tokens  # matters only where blocks are freed before the end
        return self.blocks_needed(num_tokens)

    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return no blocks: later tokens read every block."""
        del num_computed_tokens
        return range(0)

    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return the number of cached blocks before the first gap."""
        return next((i for i, hit in enumerate(is_cached) if not hit), len(is_cached))
