"""Sizes, layer parameters and padding of a test scene for attention backends."""

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
    """Sizes and features of a scene."""

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
    rotary: str | None = None  # "plain" or "normed": the backend applies the rotary embedding
    batch_invariant: bool = False
    num_padding_rows: int = 0  # between pages, each of D elements

    @property
    def num_blocks(self) -> int:
        """Number of blocks in the pool."""
        return 48 + POOL_TOKENS // self.block_size

    @property
    def params(self) -> AttentionLayerParams:
        """Layer parameters that a layer of this scene passes to `forward`."""
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
    """Number of padding rows behind the real rows of a step."""

    num_requests: int = 0
    num_tokens: int = 0


def full_attention_spec(sizes: SceneSizes) -> KVCacheSpec:
    """Return the KV-cache spec that defines the page size of a scene."""
    layer = KVLayer("scene", "full_attention", sizes.num_kv_heads, sizes.head_dim)
    return _full_attention()(layer, sizes.block_size, sizes.kv_dtype)


@cache
def _full_attention() -> type[KVCacheSpec]:
    own_only = PluginSettings(disable_plugin_autoload=True)
    return load_plugins(own_only).registries.kv_cache_specs.get("full_attention")
