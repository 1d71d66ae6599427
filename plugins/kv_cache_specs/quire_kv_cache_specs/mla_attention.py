"""Latent attention keeps one row a token for all heads, so every device keeps the whole row."""

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVLayer
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.sizes import size_param


class MLAAttentionSpec(FullAttentionSpec):
    """A latent and a rotated key of every token, for layers that attend to the whole context.

    The layer has one KV head, whose `head_dim` is the length of a row; its parameter `latent_dim`
    says how much of it, from the first, is the latent.

    Raises:
        SettingsError: There are several KV heads, or no part of a row is left for the rotated key.
    """

    def __init__(self, layer: KVLayer, block_size: int, kv_dtype: str, tp_size: int = 1) -> None:
        super().__init__(layer, block_size, kv_dtype, tp_size)
        self.latent_dim = size_param(layer, "latent_dim")
        if layer.num_kv_heads != 1:
            raise SettingsError(
                f"{layer.spec} of {layer.name} keeps one row for all heads, and the model's "
                f"description gives it num_kv_heads={layer.num_kv_heads}; it must give 1"
            )
        if self.rope_dim < 1:
            raise SettingsError(
                f"{layer.spec} of {layer.name}: head_dim is the latent and the rotated key "
                f"together, so it must be more than latent_dim={self.latent_dim}, got "
                f"{layer.head_dim}"
            )

    @property
    def rope_dim(self) -> int:
        """Numbers of the rotated key."""
        return self.layer.head_dim - self.latent_dim

    @property
    def page_bytes(self) -> int:
        """Bytes of the rows of one block of one layer, the same on every device."""
        return self.block_size * self.row_bytes
