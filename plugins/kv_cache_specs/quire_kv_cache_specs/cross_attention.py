"""Spec of cross-attention: a fixed block table for the encoder's tokens."""

from collections.abc import Sequence

from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.kv_pages import KVPagesSpec
from quire_kv_cache_specs.sizes import size_param


class CrossAttentionSpec(KVPagesSpec):
    """K and V of the encoder's output; the layer's parameter `encoder_len` is its length in tokens.

    The hash of a prefix does not cover the encoder's input, so there are no prefix cache hits.

    Raises:
        SettingsError: `encoder_len` is missing or not positive; otherwise as for `KVPagesSpec`.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        super().__init__(layer, block_size, kv_dtype, tp_size)
        self.encoder_len = size_param(layer, "encoder_len")

    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """Return the number of blocks of the encoder's tokens, for any number of decoder tokens."""
        del num_tokens, num_lookahead_tokens
        return self.blocks_of(self.encoder_len)

    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the same number: all are held from the first step to the end."""
        del num_tokens, max_step_tokens
        return self.blocks_of(self.encoder_len)

    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return no blocks: every token reads the whole encoder output."""
        del num_computed_tokens
        return range(0)

    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return 0: there are no prefix cache hits."""
        del is_cached
        return 0

    def cacheable_blocks(self, fresh: range, num_computed_tokens: int) -> range:
        """Return no blocks: the table is not by position, so its blocks have no hash."""
        del fresh, num_computed_tokens
        return range(0)
