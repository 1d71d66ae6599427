"""The table of contents of this plugin. Imports nothing heavy."""

from quire import hookimpl
from quire.interfaces.kv_cache import KVCacheSpec
from quire.registry import Registrar


@hookimpl
def register_kv_cache_specs(registry: Registrar[type[KVCacheSpec]]) -> None:
    """Offer the KV-cache specs below."""
    registry.add("full_attention", "quire_kv_cache_specs.full_attention:FullAttentionSpec")
