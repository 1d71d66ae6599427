"""Base spec of layers that store K and V of every token: page sizes and block counts."""

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire_kv_cache_specs.sizes import check_dtype, check_positive

NUM_SIDES = 2  # K and V


class KVPagesSpec(KVCacheSpec):
    """K and V of every token, in blocks by position; subclasses define which blocks are kept.

    Raises:
        SettingsError: A size is not positive, the KV dtype is unknown, or the KV heads cannot be
            sharded evenly over the devices.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        check_positive(
            layer.name,
            block_size=block_size,
            tp_size=tp_size,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
        )
        check_dtype(layer.name, kv_dtype)
        if layer.num_kv_heads % tp_size and tp_size % layer.num_kv_heads:
            raise SettingsError(
                f"the {layer.num_kv_heads} KV heads of {layer.name} cannot be sharded over "
                f"{tp_size} devices; tensor_parallel_size must divide their number or be a "
                "multiple of it"
            )
        super().__init__(layer, block_size, kv_dtype, tp_size)

    @property
    def num_local_kv_heads(self) -> int:
        """Number of KV heads on one device; with more devices than heads, heads are replicated."""
        return max(1, self.layer.num_kv_heads // self.tp_size)

    @property
    def page_bytes(self) -> int:
        """Number of bytes of K and V of one block of one layer on one device."""
        return self.block_size * NUM_SIDES * self.num_local_kv_heads * self.row_bytes

    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """Return the number of blocks for all tokens, lookahead included, rounded up."""
        return self.blocks_of(num_tokens + num_lookahead_tokens)

    def blocks_of(self, num_tokens: int) -> int:
        """Return the number of blocks of tokens that begin at the start of a block."""
        return -(-num_tokens // self.block_size)

    def max_blocks_under(self, num_tokens: int) -> int:
        """Return the largest number of blocks of consecutive tokens, for any start.

        The worst case starts at the last token of a block: one block for it, then the rest.
        """
        return self.blocks_of(num_tokens - 1) + 1 if num_tokens else 0
