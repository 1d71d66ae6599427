"""How large a scene for attention backends is, and what its layer asks for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from quire.config import PluginSettings
from quire.interfaces.attention import AttentionLayerParams
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.plugins.loading import load_plugins

POOL_TOKENS = 2048
SCALE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneSizes:
    """What a scene is built for."""

    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    dtype: str = "float32"
    kv_dtype: str = "float32"
    device: str = "cpu"
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    k_scale: float = 1.0
    v_scale: float = 1.0
    rotary: str | None = None  # "plain" or "normed": the backend turns the heads itself
    batch_invariant: bool = False
    num_padding_rows: int = 0  # between pages, each of D numbers

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return 48 + POOL_TOKENS // self.block_size

    @property
    def params(self) -> AttentionLayerParams:
        """What a layer of this scene gives to `forward`."""
        return AttentionLayerParams(
            SCALE,
            self.window,
            self.soft_cap,
            torch.linspace(-1.0, 3.0, self.num_heads).to(self.device) if self.has_sinks else None,
            self.k_scale,
            self.v_scale,
            self.chunk,
        )


@dataclass(frozen=True, slots=True)
class Padding:
    """How many rows of padding a step carries behind the real ones."""

    num_requests: int = 0
    num_tokens: int = 0


def full_attention_spec(sizes: SceneSizes) -> KVCacheSpec:
    """Return the spec that gives a scene's pages their size."""
    layer = KVLayer("scene", "full_attention", sizes.num_kv_heads, sizes.head_dim)
    return _full_attention()(layer, sizes.block_size, sizes.kv_dtype)


@cache
def _full_attention() -> type[KVCacheSpec]:
    own_only = PluginSettings(disable_plugin_autoload=True)
    return load_plugins(own_only).registries.kv_cache_specs.get("full_attention")
