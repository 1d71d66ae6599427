"""What a worker of one of several replicas takes of a CPU: its share of cores and memory."""

import pytest

from quire.config import Settings
from quire.launch.composing import compose_engine
from quire.layers import SingleDevice
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.worker import worker as worker_module
from quire.worker.parts import WorkerParts
from quire.worker.worker import ModelWorker


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a worker; returns the bytes for its cache, and the number of threads it asked for."""
    write_checkpoint(tmp_path, "Qwen3ForCausalLM")
    asked = []
    monkeypatch.setattr(worker_module, "host_cache_bytes", lambda num_ranks: 1000 // num_ranks)
    monkeypatch.setattr(worker_module.THREADS, "use", lambda *numbers: asked.append(numbers))

    def start(**options):
        settings = Settings.from_options({"model": str(tmp_path), "device": "cpu"} | options)
        composed = compose_engine(settings, load_plugins(settings.plugins))
        parts = WorkerParts.load(settings, composed.composition, composed.plugins.registries)
        info = ModelWorker(settings, parts, SingleDevice()).load()
        return info.kv_bytes, asked.pop()

    return start


def test_memory_and_cores_are_divided_among_replicas(load):
    assert load() == ([1000], (None, 1))
    assert load(data_parallel_size=4) == ([250], (None, 4))
    assert load(data_parallel_size=4, threads=3) == ([250], (3, 4))
