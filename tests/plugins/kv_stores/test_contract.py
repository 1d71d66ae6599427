"""The host-memory tier passes the conformance kit of KV stores."""

from quire.testing.kv_store import KVStoreContract
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory


class TestHostMemory(KVStoreContract):
    scheduler_class = HostMemoryScheduler
    worker_class = HostMemory

    def damage(self, scene, block_hash):
        slot = scene.scheduler.index.find(block_hash).slot
        scene.worker.pool.slot(slot)[7] ^= 1


class TestHostMemoryInManySteps(TestHostMemory):
    """One block per step, so that transfers of several blocks take several steps."""

    def options(self, folder, max_bytes):
        return {"max_bytes": str(max_bytes), "step_bytes": "1"}
