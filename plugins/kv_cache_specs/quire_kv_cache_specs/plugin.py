"""Registration of the KV-cache specs of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.kv_cache import KVCacheSpec, KVSpecCapabilities


@hookimpl
def register_kv_cache_specs(registry: Registrar[type[KVCacheSpec]]) -> None:
    """Register the KV-cache specs."""
    registry.add(
        "full_attention",
        "quire_kv_cache_specs.full_attention:FullAttentionSpec",
        capabilities=KVSpecCapabilities(),
    )
    registry.add(
        "sliding_window",
        "quire_kv_cache_specs.sliding_window:SlidingWindowSpec",
        capabilities=KVSpecCapabilities(window_param="window"),
    )
    registry.add(
        "chunked_local_attention",
        "quire_kv_cache_specs.chunked_local:ChunkedLocalAttentionSpec",
        capabilities=KVSpecCapabilities(chunk_param="chunk"),
    )
    registry.add(
        "cross_attention",
        "quire_kv_cache_specs.cross_attention:CrossAttentionSpec",
        capabilities=KVSpecCapabilities(layout="cross"),
    )
    registry.add(
        "mla_attention",
        "quire_kv_cache_specs.mla_attention:MLAAttentionSpec",
        capabilities=KVSpecCapabilities(layout="mla"),
    )
    registry.add(
        "recurrent_state",
        "quire_kv_cache_specs.recurrent_state:RecurrentStateSpec",
        capabilities=KVSpecCapabilities(layout="state"),
    )
