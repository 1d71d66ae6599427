"""The built-in store is registered by name, with both sides."""

from quire.plugins.registry import import_reference
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory


def test_the_store_has_a_scheduler_side_and_a_worker_side(quire_registries):
    registry = quire_registries.kv_stores
    assert registry.get("host_memory") is HostMemoryScheduler
    worker = registry.entry("host_memory").capabilities.worker
    assert import_reference(worker, "worker") is HostMemory
