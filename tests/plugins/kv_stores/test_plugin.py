"""The store that ships is found by its name, both halves of it."""

from quire.plugins.registry import import_reference
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory


def test_the_store_has_a_half_beside_the_scheduler_and_one_beside_the_model(quire_registries):
    registry = quire_registries.kv_stores
    assert registry.get("host_memory") is HostMemoryScheduler
    worker = registry.entry("host_memory").capabilities.worker
    assert import_reference(worker, "worker") is HostMemory
