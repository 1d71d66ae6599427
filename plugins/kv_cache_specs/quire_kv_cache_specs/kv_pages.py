"""A page of K and V: the bytes are the same for every layer that attends, whatever it forgets."""

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire_kv_cache_specs.sizes import check_dtype, check_positive

NUM_SIDES = 2  # K and V


class KVPagesSpec(KVCacheSpec):
    """K and V of every token, in blocks by position; which of them are kept is left to others.

    Raises:
        SettingsError: A size is not positive, the element type is unknown, or the heads cannot be
            shared evenly by the devices.
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
                f"the {layer.num_kv_heads} KV heads of {layer.name} cannot be shared by {tp_size} "
                "devices; tensor_parallel_size must divide their number or be a multiple of it"
            )
        super().__init__(layer, block_size, kv_dtype, tp_size)

    @property
    def num_local_kv_heads(self) -> int:
        """K on one device; with more devices than heads, each head is kept several times."""
        return max(1, self.layer.num_kv_heads // self.tp_size)

    @property
    def page_bytes(self) -> int:
        """Bytes of K and V of one block of one layer on one device."""
        return self.block_size * NUM_SIDES * self.num_local_kv_heads * self.row_bytes

    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """Return the blocks for all tokens, the lookahead included; a part of one counts whole."""
        return self.blocks_of(num_tokens + num_lookahead_tokens)

    def blocks_of(self, num_tokens: int) -> int:
        """Return the blocks that tokens from a block's start on lie in."""
        return -(-num_tokens // self.block_size)

    def max_blocks_under(self, num_tokens: int) -> int:
        """Return the blocks that so many neighbouring tokens lie in at most, wherever they start.

        The worst start is the last token of a block: one block for it, and those of the rest.
        """
        return self.blocks_of(num_tokens - 1) + 1 if num_tokens else 0
