"""Full attention reads every token again, so a request keeps all of its blocks to its end."""

from collections.abc import Sequence

from quire.errors import SettingsError
from quire.interfaces.kv_cache import DTYPE_BYTES, KVCacheSpec, KVLayer

NUM_SIDES = 2  # K and V


class FullAttentionSpec(KVCacheSpec):
    """K and V of every token, for layers that attend to the whole context.

    Raises:
        SettingsError: A size is not positive, the element type is unknown, or the heads cannot be
            shared evenly by the devices.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        _check_positive(
            layer.name,
            block_size=block_size,
            tp_size=tp_size,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
        )
        if kv_dtype not in DTYPE_BYTES:
            known = ", ".join(sorted(DTYPE_BYTES))
            raise SettingsError(f"unknown KV dtype {kv_dtype!r} for {layer.name} (known: {known})")
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
        numbers_a_token = NUM_SIDES * self.num_local_kv_heads * self.layer.head_dim
        return self.block_size * numbers_a_token * DTYPE_BYTES[self.kv_dtype]

    def blocks_needed(self, num_tokens: int, num_lookahead_tokens: int = 0) -> int:
        """Return the blocks for all tokens, the lookahead included; a part of one counts whole."""
        return -(-(num_tokens + num_lookahead_tokens) // self.block_size)

    def max_blocks_held(self, num_tokens: int, max_step_tokens: int) -> int:
        """Return the blocks of all tokens: none is given back before the end."""
        del max_step_tokens  # matters only where blocks are freed on the way
        return self.blocks_needed(num_tokens)

    def freeable_blocks(self, num_computed_tokens: int) -> range:
        """Return nothing: a later token reads every block."""
        del num_computed_tokens
        return range(0)

    def cached_prefix(self, is_cached: Sequence[bool]) -> int:
        """Return how many blocks are cached before the first gap."""
        return next((i for i, hit in enumerate(is_cached) if not hit), len(is_cached))


def _check_positive(layer_name: str, **sizes: int) -> None:
    for what, size in sizes.items():
        if size < 1:
            raise SettingsError(f"{what} of {layer_name} must be at least 1, got {size}")
