"""Registration of the KV stores of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.kv_transfer import KVStoreCapabilities, KVStoreScheduler


@hookimpl
def register_kv_stores(registry: Registrar[type[KVStoreScheduler]]) -> None:
    """Register the KV stores."""
    registry.add(
        "host_memory",
        "quire_kv_stores.host_memory:HostMemoryScheduler",
        capabilities=KVStoreCapabilities(worker="quire_kv_stores.host_memory_worker:HostMemory"),
    )
