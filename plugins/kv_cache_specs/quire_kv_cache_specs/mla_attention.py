"""Spec of latent attention (MLA): one row per token for all heads, whole on every device."""

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.sizes import size_param


class MLAAttentionSpec(FullAttentionSpec):
    """A latent and a rotary key of every token, for layers that attend to the whole context.

    The layer has one KV head, whose `head_dim` is the length of a row; its parameter `latent_dim`
    is the length of the latent at the start of the row.

    Raises:
        SettingsError: There are several KV heads, or the row has no elements for the rotary key.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        super().__init__(layer, block_size, kv_dtype, tp_size)
        self.latent_dim = size_param(layer, "latent_dim")
        if layer.num_kv_heads != 1:
            raise SettingsError(
                f"{layer.spec} of {layer.name} stores one row for all heads, so the model's "
                f"description must give num_kv_heads=1, got {layer.num_kv_heads}"
            )
        if self.rope_dim < 1:
            raise SettingsError(
                f"{layer.spec} of {layer.name}: head_dim is the length of the latent and the "
                f"rotary key, so it must be more than latent_dim={self.latent_dim}, got "
                f"{layer.head_dim}"
            )

    @property
    def rope_dim(self) -> int:
        """Number of elements of the rotary key."""
        return self.layer.head_dim - self.latent_dim

    @property
    def page_bytes(self) -> int:
        """Number of bytes of one block of one layer, the same on every device."""
        return self.block_size * self.row_bytes
